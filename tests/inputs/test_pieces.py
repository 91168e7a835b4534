"""Large parameters merged in pieces: the same values as whole, to the last bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.checkpoints.tensors import Rows
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.deltas import checked_norm, extract, open_deltas, stored_norm
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource, ThreadedLayers, part_of
from merganser.inputs.model_deltas import ModelDeltas, open_models, unchanged
from merganser.inputs.pieces import PIECE, in_pieces
from merganser.merging.driver import with_base
from merganser.merging.method import Method
from merganser.operators.angles import TILE
from tests.laws.test_references import by_task
from tests.laws.test_registry_properties import choices
from tests.small_models import write_models

DIVIDED = [name for name in registry.names() if registry.get(name).divided and not registry.get(name).embeddings]
OWN: tuple[object, ...] = (None, "inverse_norm")
SIZE = 60  # values of all tasks: most parameters of the models here are larger


@dataclass(frozen=True)
class Opened:
    """A base and models fine-tuned from it, opened as `merganser merge` does, and their deltas as the pipeline does."""

    base: Checkpoint
    sources: dict[str, dict[int, LayerSource]]  # by kind and by how many tasks

    def source(self, kind: str, method: Method, values: dict[str, Any]) -> LayerSource:
        """Return what a method is given."""
        found = self.sources[kind][method.most_tasks or 3]
        return with_base(found, self.base) if method.takes_base(values) else found


def opened(folder: Path, paths: dict[str, Path]) -> Opened:
    models = {name: open_checkpoint(path) for name, path in paths.items()}
    base, rules = models.pop("base"), ParameterRules()
    for task, model in models.items():
        extract(base, model, rules, task, folder / f"{task}.safetensors")
    some = {count: dict(list(models.items())[:count]) for count in (2, 3)}
    return Opened(
        base,
        {
            "models": {count: open_models(base, each, rules) for count, each in some.items()},
            "deltas": {count: open_deltas(folder, list(each)) for count, each in some.items()},
        },
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("models")
    return opened(folder, write_models(folder, dtype=torch.bfloat16))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Write models whose rows are longer than what is summed at once, and models of many rows."""
    folder, drawn = tmp_path_factory.mktemp("large"), torch.Generator().manual_seed(0)
    shapes = {"long.weight": (5, 2 * TILE + 70), "many.weight": (3000, 20)}
    start = {name: 0.02 * torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
    for model in ("base", "task0", "task1", "task2"):
        scale = 0.002 * (model != "base")
        values = {name: start[name] + scale * torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
        save_tensors(folder / f"{model}.safetensors", {name: each.bfloat16() for name, each in values.items()})
    paths = {path.stem: path for path in sorted(folder.iterdir())}
    return opened(tmp_path_factory.mktemp("deltas"), paths)


def merged(method: Method, values: dict[str, Any], source: LayerSource) -> Iterator[tuple[str | Rows, Tensor]]:
    with torch.inference_mode():
        merge_layer = method.bind(values, source)

        def merge(layer: Layer) -> tuple[str | Rows, Tensor]:
            result = merge_layer(layer)
            assert isinstance(result, Tensor)
            return part_of(layer), result

        yield from source.map(merge)


@pytest.mark.parametrize("kind", ["models", "deltas"])
@pytest.mark.parametrize("name", DIVIDED)
def test_pieces_merge_as_the_whole_does(name: str, kind: str, small: Opened) -> None:
    method = registry.get(name)
    more: list[dict[str, Any]] = []
    if "coefficients" in method.parameters.model_fields:
        more = [{"coefficients": each, "layers": {"*in_proj*": {"coefficients": {"task0": 2.0}}}} for each in OWN]
    own = by_task(method) & {"density", "drop_rate"}
    if own:
        shares = {f"task{t}": 0.2 + 0.3 * t for t in range(3)}
        more += [dict.fromkeys(own, shares) | {"layers": {"*in_proj*": dict.fromkeys(own, 0.4)}}]
    first, *others = choices(name)  # all of them by models: what is stored of deltas is read as that of models is
    for given in (first, *(others if kind == "models" else ()), *more):
        values = method.validate(name, given)
        source = small.source(kind, method, values)
        assert_same(method, values, source, SIZE)


BY_PARAMETER = [name for name in DIVIDED if registry.get(name).by_parameter]


@pytest.mark.parametrize("name", BY_PARAMETER)
def test_pieces_of_large_parameters_merge_as_the_whole_does(name: str, large: Opened) -> None:
    method = registry.get(name)
    for given in choices(name):
        values = method.validate(name, given)
        assert_same(method, values, large.source("models", method, values), 3 * 1000)


def assert_same(method: Method, values: dict[str, Any], source: LayerSource, size: int) -> None:
    """Merge whole parameters, and pieces of at most so many values of all tasks, and compare the bits."""
    whole = dict(merged(method, values, source))
    pieces: dict[str, list[Tensor]] = {}
    for part, result in merged(method, values, ThreadedLayers(in_pieces(source, method.divided, size), 3)):
        pieces.setdefault(part if isinstance(part, str) else part.name, []).append(result)
    assert max(map(len, pieces.values())) > 1
    assert pieces.keys() == whole.keys()
    for parameter, parts in pieces.items():
        together = parts[0] if len(parts) == 1 else torch.cat(parts)
        torch.testing.assert_close(together, whole[parameter], rtol=0, atol=0)


def test_pieces_are_whole_rows_of_a_bounded_size(small: Opened) -> None:
    source = small.sources["models"][3]
    pieced = in_pieces(source, registry.get("average").divided, SIZE)
    first = ("blocks.0.attn.in_proj_bias", "blocks.0.attn.in_proj_weight[0:2]", "blocks.0.attn.in_proj_weight[2:4]")
    assert pieced.names[:3] == first
    for layer in pieced:
        assert isinstance(layer, LayerDeltas)
        assert layer.shape == pieced.shapes[layer.name]
        assert layer.deltas.numel() <= SIZE or layer.deltas.ndim < 3 or len(layer.deltas[0]) == 1
    entries = sum(shape.numel() for shape in map(torch.Size, source.shapes.values()))
    assert sum(shape.numel() for shape in map(torch.Size, pieced.shapes.values())) == entries


def test_a_norm_read_in_pieces_is_the_norm_of_the_whole(tmp_path: Path) -> None:
    values = torch.randn(PIECE + 5000, generator=torch.Generator().manual_seed(0))
    tensors = {"plain": values, "half": values.half(), "tiny": values * 1e-30, "exact": values.double()}
    save_tensors(tmp_path / "model.safetensors", tensors)
    file = open_checkpoint(tmp_path)
    for name, tensor in tensors.items():
        assert stored_norm(file, name) == checked_norm(tensor, name, "model")


def test_a_difference_in_the_last_row_of_a_large_parameter_is_found(tmp_path: Path) -> None:
    base = {"w": torch.zeros(PIECE // 1000 + 1, 1000)}
    tuned = {"w": base["w"].clone()}
    tuned["w"][-1, -1] = 1
    for name, state in {"base": base, "same": base, "tuned": tuned}.items():
        save_tensors(tmp_path / f"{name}.safetensors", state)
    files = {name: open_checkpoint(tmp_path / f"{name}.safetensors") for name in ("base", "same", "tuned")}
    deltas: ModelDeltas = open_models(files.pop("base"), files, ParameterRules())
    assert unchanged(deltas, deltas.tasks) == ["same"]
