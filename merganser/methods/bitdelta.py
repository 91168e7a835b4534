"""BitDelta: each task's matrices as one bit an entry, the sign, and one magnitude."""

import torch

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks
from merganser.merging.method import method
from merganser.operators.vectors import whole
from merganser.overlays.parts import Binary, Parts, pack_bits


@method(
    family="compressed",
    formula=r"\alpha_t\, \mathrm{sgn}(\Delta_t), \quad \alpha_t = \frac{1}{n} \lVert \Delta_t \rVert_1",
    paper="Liu et al., NeurIPS 2024, arXiv:2402.10193",
    law="a delta of one magnitude is exact; a part has its delta's L1 norm",
    vectors=whole,
)
def bitdelta(layer: LayerDeltas) -> Parts:
    """Keep the sign of each entry of a matrix, with the mean magnitude for all; vectors are kept whole.

    Among the numbers with these signs it is the nearest. An entry that did not change counts as positive, as in the
    authors' code. The paper goes on to distil the magnitudes on data, which this does not.
    """
    parts = {}
    for task, delta in zip(layer.tasks, layer.deltas, strict=True):
        size = sum(float(block.abs().sum(dtype=torch.float64)) for block in blocks(delta.unsqueeze(0)))
        if size:
            scale = torch.tensor(size / delta.numel(), dtype=torch.float32, device=delta.device)
            parts[task] = Binary(pack_bits(delta < 0), scale)
    return Parts(parts)
