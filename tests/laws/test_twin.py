from collections.abc import Sequence

import torch

from merganser.overlays.parts import LowRank
from tests.laws.references import Array, Given
from tests.laws.spectra import drawn
from tests.laws.test_low_rank import parts_of
from tests.laws.test_svd import truncated


def reference(layers: Sequence[Given], *, rank_fraction: float) -> list[Array]:
    """Each task's difference cut to a share of its rank: tests/tasks/test_twin.py has the laws of the mixtures."""
    return [truncated(layer, rank_fraction) for layer in layers]


def test_a_tenth_of_the_rank_is_kept() -> None:
    parts = parts_of("twin", drawn(2, (40, 30), torch.float32))
    assert [len(part.s) for part in parts.tasks.values() if isinstance(part, LowRank)] == [3, 3]
