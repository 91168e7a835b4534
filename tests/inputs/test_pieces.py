"""Large parameters merged in pieces: the same values as whole, to the last bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import Rows
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.deltas import checked_norm, extract, open_deltas, stored_norm
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource, ThreadedLayers, part_of
from merganser.inputs.model_deltas import ModelDeltas, open_models, unchanged
from merganser.inputs.pieces import PIECE, in_pieces
from merganser.merging.method import Method
from tests.laws.test_references import by_task
from tests.laws.test_registry_properties import choices
from tests.small_models import write_models

DIVIDED = [name for name in registry.names() if registry.get(name).divided and not registry.get(name).embeddings]
OWN: tuple[object, ...] = (None, "inverse_norm")
SIZE = 60  # values of all tasks: most parameters of the models here are larger


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LayerSource]:
    """Open one set of models as `merganser merge` does, and their deltas as the pipeline does."""
    folder = tmp_path_factory.mktemp("models")
    models = {name: open_checkpoint(path) for name, path in write_models(folder, dtype=torch.bfloat16).items()}
    base, rules = models.pop("base"), ParameterRules()
    for task, model in models.items():
        extract(base, model, rules, task, folder / f"{task}.safetensors")
    return {"models": open_models(base, models, rules), "deltas": open_deltas(folder, list(models))}


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
def test_pieces_merge_as_the_whole_does(name: str, kind: str, sources: dict[str, LayerSource]) -> None:
    method = registry.get(name)
    more: list[dict[str, Any]] = []
    if "coefficients" in method.parameters.model_fields:
        more = [{"coefficients": each, "layers": {"*in_proj*": {"coefficients": {"task0": 2.0}}}} for each in OWN]
    own = by_task(method) & {"density", "drop_rate"}
    if own:
        shares = {f"task{t}": 0.2 + 0.3 * t for t in range(3)}
        more += [dict.fromkeys(own, shares) | {"layers": {"*in_proj*": dict.fromkeys(own, 0.4)}}]
    for given in (*choices(name), *more):
        values = method.validate(name, given)
        source = sources[kind]
        whole = dict(merged(method, values, source))
        pieces: dict[str, list[Tensor]] = {}
        for part, result in merged(method, values, ThreadedLayers(in_pieces(source, method.divided, SIZE), 3)):
            pieces.setdefault(part if isinstance(part, str) else part.name, []).append(result)
        assert max(map(len, pieces.values())) > 1
        assert pieces.keys() == whole.keys()
        for parameter, parts in pieces.items():
            together = parts[0] if len(parts) == 1 else torch.cat(parts)
            torch.testing.assert_close(together, whole[parameter], rtol=0, atol=0)


def test_pieces_are_whole_rows_of_a_bounded_size(sources: dict[str, LayerSource]) -> None:
    source = sources["models"]
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
    assert unchanged(deltas) == ["same"]
