"""What is no matrix and no vector of weights passes through every method: tensors of no value or one, measured ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from merganser import registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.layers import GivenLayers
from merganser.merging.driver import merge_layers
from merganser.overlays import task_model
from tests.laws.checkpoints import Models, prepare
from tests.laws.layers import with_few_steps
from tests.laws.test_registry_properties import every_method

TASKS = ("task0", "task1", "task2")
WEIGHTS = {
    **{"square.weight": (6, 6), "wide.weight": (4, 9), "bias": (6,), "conv.weight": (3, 2, 2, 2)},
    **{"scalar": (), "one": (1,), "one_by_one.weight": (1, 1), "one_row.weight": (1, 5)},
}
EMPTY = {"none": (0,), "no_rows.weight": (0, 8), "no_columns.weight": (8, 0), "no_kernels.weight": (0, 2, 3, 3)}
MEAN, VARIANCE, COUNT = (f"bn.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))


def state_of(number: int, base: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Draw a base, or a model that was fine-tuned from it; its variances are far smaller, and one of them 0."""
    generator = torch.Generator().manual_seed(number)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    start = base or {name: torch.zeros(shape) for name, shape in WEIGHTS.items()}
    state = {name: start[name] + (0.1 if base is None else 0.02) * drawn(*shape) for name, shape in WEIGHTS.items()}
    state |= {name: torch.zeros(shape) for name, shape in EMPTY.items()}
    variance = drawn(6).square() * (1.0 if base is None else 1e-3)
    variance[number % 6] = 0
    return state | {MEAN: drawn(6), VARIANCE: variance, COUNT: torch.tensor(100 * number)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Models]:
    """Write the models, `whole` and, as `plain`, without what is no weight or has no value."""
    root, base = tmp_path_factory.mktemp("models"), state_of(0)
    for kind, left_out in (("whole", set()), ("plain", {*EMPTY, MEAN, VARIANCE, COUNT})):
        (root / kind).mkdir()
        for number, name in enumerate(("base", *TASKS)):
            state = state_of(number, base) if number else base
            save_tensors(root / kind / f"{name}.safetensors", {n: v for n, v in state.items() if n not in left_out})
        for task in TASKS:
            prepare(root / kind, task)
    return lambda kind: Models(root / kind, TASKS)


@every_method
def test_every_tensor_passes_through_and_what_was_measured_is_averaged(
    name: str, written: Callable[[str], Models], tmp_path: Path
) -> None:
    method, whole, plain = registry.get(name), written("whole"), written("plain")
    fields = method.parameters.model_fields
    given = {key: value for key, value in (("scaling", 2.0), ("density", 0.9)) if key in fields}
    values, read = method.validate(name, with_few_steps(method, given)), plain.source(method)
    sources = {"whole": GivenLayers(whole.source(method), {"learned": read.table.learned}), "plain": read}
    for kind, source in sources.items():
        base = open_checkpoint(written(kind).folder / "base.safetensors")
        (tmp_path / kind).mkdir()
        merge_layers(method, values, source, base, tmp_path / kind, torch.device("cpu"))
    start, tasks = load_file(whole.folder / "base.safetensors"), list(read.tasks)
    own = {task: load_file(whole.folder / f"{task}.safetensors") for task in tasks}
    found = {None: load_file(tmp_path / "whole/model.safetensors")}
    found |= {task: dict(task_model(tmp_path / "whole", task)) for task in tasks if method.overlay}
    for task, state in found.items():
        assert {n: (v.dtype, v.shape) for n, v in state.items()} == {n: (v.dtype, v.shape) for n, v in start.items()}
        assert all(value.isfinite().all() for value in state.values()), task
        assert (state[VARIANCE] >= 0).all()
        assert torch.equal(state[COUNT], start[COUNT])
        shared = load_file(tmp_path / "plain/model.safetensors")
        expected = shared if task is None else dict(task_model(tmp_path / "plain", task))
        assert all(torch.equal(state[n], value) for n, value in expected.items()), "weights are merged by themselves"
        for measured in (MEAN, VARIANCE) if not method.embeddings else ():  # a task's is a mixture of others' there
            mean = torch.stack([own[each][measured].double() for each in tasks]).mean(0)
            kept = own[task][measured].double() if task and not method.linear_maps else start[measured].double()
            wanted = kept if method.overlay or name in ("base", "recalibrate") else mean
            torch.testing.assert_close(state[measured].double(), wanted, rtol=0, atol=1e-6)
