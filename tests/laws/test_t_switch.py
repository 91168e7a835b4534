from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.overlays.parts import Parts
from tests.laws.layers import delta_of, merged
from tests.laws.references import Array, Given, PerTask, flat, largest_of_each, unflat
from tests.laws.samples import in_pieces, joined, network


def reference(layers: Sequence[Given], *, density: PerTask) -> list[Array]:
    """The signs of each task's largest entries, times the root mean square of the kept ones of that sign."""
    found, vectors = [], flat(layers)
    for vector, mask in zip(vectors, largest_of_each(vectors, density, layers), strict=True):
        kept = vector * mask
        out = np.zeros_like(vector)
        for side, sign in ((kept > 0, 1), (kept < 0, -1)):
            if side.any():
                out[side] = sign * np.sqrt((kept[side] ** 2).mean())
        found.append(out)
    return unflat(np.stack(found), layers)


def switched(whole: Tensor, density: float) -> Tensor:
    """Merge whole vectors (T, n), cut into two layers; return the tasks' own, (T, n)."""
    layers = in_pieces(whole)
    found = zip(layers, merged("t_switch", *layers, density=density), strict=True)
    pieces = [
        torch.stack([delta_of(p, t, tuple(x.deltas.shape[1:])).flatten() for t in x.tasks])
        for x, p in found
        if isinstance(p, Parts)
    ]
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("tasks", [1, 3])
def test_density_one_and_one_magnitude_per_sign_is_exact(tasks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(-1, 2, (tasks, 40), generator=generator)
    whole = torch.where(signs > 0, 0.25, torch.where(signs < 0, -0.125, 0.0))
    assert torch.equal(switched(whole, 1.0), whole)


def test_each_sign_keeps_its_length_and_its_places() -> None:
    whole = joined(network(3)).float()
    found = switched(whole, 0.5)
    kept = torch.stack(
        [row * (row.abs() >= row.abs().sort(descending=True).values[len(row) // 2 - 1]) for row in whole]
    )
    assert torch.equal(found.sign(), kept.sign())
    for side in (1, -1):
        torch.testing.assert_close(
            torch.where(found.sign() == side, found, 0).norm(dim=1),
            torch.where(kept.sign() == side, kept, 0).norm(dim=1),
        )


def test_t_switch_by_hand() -> None:
    found = switched(torch.tensor([[3.0, -5.0, 1.0, 4.0, -0.5, 0.0, 0.25, -2.0]]), 0.5)
    assert found.tolist()[0] == pytest.approx([12.5**0.5, -(14.5**0.5), 0, 12.5**0.5, 0, 0, 0, -(14.5**0.5)])


def test_a_parameter_of_which_nothing_is_kept_stores_nothing() -> None:
    layers = in_pieces(torch.tensor([[5.0, -6.0, 0.1, 0.2]]))
    first, second = merged("t_switch", *layers, density=0.5)
    assert isinstance(first, Parts)
    assert isinstance(second, Parts)
    assert list(first.tasks) == ["task0"]
    assert list(second.tasks) == []
