"""What DRM-V has of its own: the laws that both ways share are in test_drm_h.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.laws.layers import matrices, merged
from tests.laws.references import Array, Given
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, every_shape, numpy_of
from tests.laws.test_drm_h import decom_renorm_merge

CASES = [{"density": 1.0}]


def reference(layers: Sequence[Given], *, density: float, scaling: float, **steps: Any) -> list[Array]:
    """Merge transposed matrices in their joint space, and transpose back; average vectors."""
    return [
        scaling
        * (decom_renorm_merge(layer.deltas.swapaxes(1, 2), density, **steps).T if matrix else layer.deltas.mean(0))
        for layer, matrix in ((layer, layer.kind == "matrix") for layer in layers)
    ]


@every_shape
@every_number
@both_dtypes
def test_drm_v_is_drm_h_on_the_transposes(shape: tuple[int, int], tasks: int, dtype: torch.dtype) -> None:
    deltas = drawn(tasks, shape, dtype)
    (turned,) = merged("drm_h", matrices(list(deltas.mT)), scaling=0.6)
    assert isinstance(turned, torch.Tensor)
    assert_close(merged("drm_v", matrices(list(deltas)), scaling=0.6)[0], numpy_of(turned).T)


def test_drm_v_by_hand() -> None:
    # One shared column direction, drm_h's case set upright: half of the four entries stay, and the sum elects +.
    deltas = [torch.tensor([[3.0], [4.0]]), torch.tensor([[0.0], [-2.0]])]
    assert_close(merged("drm_v", matrices(deltas), density=0.5)[0], np.array([[0.0], [4.0]]))
