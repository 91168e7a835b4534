"""STAR: truncate each task's spectrum, rescale what is left to the whole's nuclear norm, average."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerFactors
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import leading, rebuilt
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.subspaces import triples_holding


@method(
    family="spectral",
    formula=r"\frac{\lambda}{T} \sum_t \frac{\lVert \Delta_t \rVert_*}{\lVert \mathrm{SVD}_{k_t}(\Delta_t) \rVert_*} "
    r"\mathrm{SVD}_{k_t}(\Delta_t)",
    involvement="VDI",
    paper="Lee et al., NAACL 2025, arXiv:2502.10339",
    law="eta 1 gives the average; each task's nuclear norm is preserved",
    ours=("scaling",),
)
def star(layer: LayerFactors, *, eta: PositiveFraction = 0.4, scaling: Scaling = 1.0) -> Tensor:
    """Keep the fewest singular values that hold the share `eta` of a task's nuclear norm, scaled up to the whole."""
    merged = torch.zeros(layer.shape, dtype=torch.float64, device=layer.factors[0].s.device)
    for factors in layer.factors:
        u, s, vh = leading(factors, triples_holding(factors.s, eta))
        merged += rebuilt(Factors(u, s * (factors.s.sum() / s.sum()), vh))
    return merged.mul_(scaling / len(layer.factors)).to(layer.factors[0].s.dtype)
