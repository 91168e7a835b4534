from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from merganser.overlays.parts import LowRank, Parts
from tests.laws.layers import merged
from tests.laws.references import Array, Given, counted, svd
from tests.laws.spectra import assert_close, decomposed, drawn, numpy_of


def reference(layers: Sequence[Given], *, rank_fraction: float, **_: object) -> list[Array]:
    """Each task's delta cut to a share of its rank."""
    return [truncated(layer, rank_fraction) for layer in layers]


def truncated(layer: Given, share: float) -> Array:
    """Cut each task's matrix to a share of its rank; what keeps no triple stays whole."""
    if layer.kind == "vector" or (count := counted(share, min(layer.deltas.shape[1:]))) == 0:
        return layer.deltas
    triples = [svd(delta) for delta in layer.deltas]
    return np.stack([(u[:, :count] * s[:count]) @ vh[:count] for u, s, vh in triples])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_vectors_are_stored_as_the_cache_has_them_which_loses_nothing(dtype: torch.dtype) -> None:
    deltas = drawn(1, (12, 9), torch.float32)
    whole = decomposed(deltas)
    factors = tuple(f._replace(u=f.u.to(dtype).float(), vh=f.vh.to(dtype).float()) for f in whole.factors)
    layer = replace(whole, factors=factors, stored=dtype)
    (parts,) = merged("svd", layer, rank_fraction=1.0)
    assert isinstance(parts, Parts)
    (part,) = parts.tasks.values()
    assert isinstance(part, LowRank)
    assert (part.u.dtype, part.s.dtype, part.vh.dtype) == (dtype, torch.float32, dtype)
    (rounded,) = factors
    assert_close(part.delta((12, 9)), numpy_of(rounded.u) * numpy_of(rounded.s) @ numpy_of(rounded.vh), 1e-7)
