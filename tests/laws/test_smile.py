from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser import registry
from merganser.errors import InputError
from merganser.overlays.parts import LowRank
from tests.laws.references import Array, Given, svd
from tests.laws.spectra import drawn
from tests.laws.test_low_rank import parts_of


def reference(layers: Sequence[Given], *, k: int, k_gate: int) -> list[Array]:
    """Each task's k leading triples of a linear map and its bias, nothing of anything else.

    tests/at_run_time/test_gates.py has the laws of the gates.
    """
    return [np.stack([_leading(delta, layer, k) for delta in layer.deltas]) for layer in layers]


def _leading(delta: Array, layer: Given, k: int) -> Array:
    if layer.kind == "vector" and layer.name.endswith("bias"):
        return delta
    if layer.kind == "vector" or layer.name.split(".")[-1] == "proj":
        return np.zeros_like(delta)
    u, s, vh = svd(delta)
    found: Array = (u[:, :k] * s[:k]) @ vh[:k]
    return found


def test_gates_that_are_wider_than_their_experts_are_refused() -> None:
    method = registry.get("smile")
    assert method.validate("smile", {"k": 16, "k_gate": 16})["k"] == 16
    with pytest.raises(
        InputError, match=r"^smile\.k_gate: is 16, and an expert keeps k=8 triples, which its gate reads"
    ):
        method.validate("smile", {"k": 8})
    with pytest.raises(InputError, match=r"k_gate: is 16, and an expert keeps k=4 triples"):
        method.validate("smile", {"layers": {"blocks.*": {"k": 4}}})


def test_so_many_triples_are_kept() -> None:
    parts = parts_of("smile", drawn(2, (40, 36), torch.float32))
    assert [len(part.s) for part in parts.tasks.values() if isinstance(part, LowRank)] == [32, 32]
