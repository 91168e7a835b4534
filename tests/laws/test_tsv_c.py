from collections.abc import Sequence

import torch

from merganser.overlays.parts import Dense, LowRank
from tests.laws.references import Array, Given
from tests.laws.spectra import drawn
from tests.laws.test_low_rank import parts_of
from tests.laws.test_svd import truncated


def reference(layers: Sequence[Given], *, rank_fraction: float | None) -> list[Array]:
    """Each task's delta cut to a share of its rank, a T-th by default."""
    return [truncated(layer, rank_fraction or 1 / len(layer.tasks)) for layer in layers]


def test_all_tasks_together_take_one_matrixs_rank() -> None:
    parts = parts_of("tsv_c", drawn(4, (24, 16)))
    assert [len(part.s) for part in parts.tasks.values() if isinstance(part, LowRank)] == [4, 4, 4, 4]


def test_a_matrix_with_fewer_singular_values_than_tasks_is_kept_whole() -> None:
    parts = parts_of("tsv_c", drawn(4, (3, 9), torch.float32))
    assert all(isinstance(part, Dense) for part in parts.tasks.values())
