from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, Statistics
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, measured
from tests.laws.spectra import assert_close, drawn, every_number, every_shape, numpy_of


def reference(layers: Sequence[Given], *, k: int, eta: float, rescale: bool, scaling: float) -> list[Array]:
    """Trim matrices, on the side that their outputs are, and add all up."""
    found = []
    for layer in layers:
        deltas = layer.deltas
        if layer.kind == "matrix":
            turned = layer.statistics.side == "rows"
            maps = deltas.transpose(0, 2, 1) if turned else deltas
            trimmed = trim(maps, measured(layer.statistics["gram"]), k, eta, rescale)
            deltas = trimmed.transpose(0, 2, 1) if turned else trimmed
        found.append(scaling * deltas.sum(0))
    return found


def trim(maps: Array, grams: Array, k: int, eta: float, rescale: bool) -> Array:
    """Project each task's map outside the directions of every other task, in turn."""
    bases = []
    for task, gram in enumerate(grams):
        others = [(d, g) for other, (d, g) in enumerate(zip(maps, grams, strict=True)) if other != task]
        conflict = sum((d @ (gram - eta * g) @ d.T for d, g in others), np.zeros((maps.shape[1],) * 2))
        values, axes = np.linalg.eigh(conflict)
        wanted = [at for at in np.argsort(values)[::-1][:k] if values[at] > 1e-10 * np.abs(values).max()]
        bases.append(axes[:, wanted])
    left = maps.copy()
    for own in range(len(maps)):
        for other, basis in enumerate(bases):
            if other != own:
                before = np.linalg.norm(left[own])
                left[own] = left[own] - basis @ basis.T @ left[own]
                after = np.linalg.norm(left[own])
                left[own] *= before / after if rescale and after > 0 else 1
    return left


CASES = [{"eta": 0.1, "k": 2}, {"eta": 0.0, "k": 3, "rescale": True}]


def on_inputs(deltas: Tensor, grams: Tensor) -> LayerDeltas:
    return replace(matrices(list(deltas)), statistics=Statistics({"gram": grams}))


@every_shape
@every_number
def test_without_directions_it_is_task_arithmetic(shape: tuple[int, int], tasks: int) -> None:
    deltas = drawn(tasks, shape)
    assert_close(merged("cat_merging", matrices(list(deltas)), k=0)[0], 0.4 * numpy_of(deltas.sum(0)), 1e-12)
    assert_close(merged("cat_merging", vectors(list(deltas[:, 0])))[0], 0.4 * numpy_of(deltas[:, 0].sum(0)), 1e-12)


def test_one_task_disturbs_no_other() -> None:
    deltas = drawn(1, (5, 6))
    assert_close(merged("cat_merging", matrices(list(deltas)), eta=0.0, scaling=1.0)[0], numpy_of(deltas[0]), 1e-12)


def test_what_is_left_does_nothing_to_the_other_tasks_inputs_if_all_directions_may_go() -> None:
    deltas, generator = drawn(2, (4, 6)), torch.Generator().manual_seed(0)
    rows = torch.randn(2, 30, 6, generator=generator, dtype=torch.float64)
    layer = on_inputs(deltas, rows.mT @ rows / 30)
    gone = merged("cat_merging", layer, k=4, eta=0.0, scaling=1.0)[0]
    assert torch.linalg.norm(gone) < 1e-12 * torch.linalg.norm(deltas)  # type: ignore[arg-type]


def test_cat_merging_by_hand() -> None:
    # The first task's map has outputs 2 and 1, the second's 4 on the second output alone; inputs of 1 and of 3. The
    # second disturbs the first by 16 (1 - 0.1 3) > 0 on the second output, and loses all. The first disturbs the second
    # by 3 - 0.1 along its own output (2, 1), and loses all.
    deltas = torch.tensor([[[2.0], [1.0]], [[0.0], [4.0]]], dtype=torch.float64)
    grams = torch.tensor([[[1.0]], [[3.0]]], dtype=torch.float64)
    found = merged("cat_merging", on_inputs(deltas, grams), eta=0.1, scaling=1.0)[0]
    assert torch.linalg.norm(found) < 1e-12  # type: ignore[arg-type]
    # At eta 1 the second does more to its own inputs, 16 (1 - 3) < 0, and keeps its delta.
    kept = merged("cat_merging", on_inputs(deltas, grams), eta=1.0, scaling=1.0)[0]
    assert_close(kept, np.array([[0.0], [4.0]]), 1e-12)
