"""What a merge holds of its input: one layer of all tasks, whatever the method and however often it reads them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from merganser import registry
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import Rows
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.layers import Layer, LayerDeltas, LayerFactors
from merganser.inputs.model_deltas import ModelDeltas, open_models
from merganser.inputs.pieces import PIECE
from merganser.linalg.decompositions import Factors
from merganser.merging import driver
from tests.laws.layers import Layers, with_start
from tests.laws.samples import network
from tests.laws.test_registry_properties import as_read, choices, every_method, methods_that


class OneAtATime(Layers):
    """A source that makes each layer anew, and lets nobody keep any of its memory while the next is read."""

    def layer(self, name: str) -> Layer:
        assert all(part.expired() for part in self.__dict__.get("last", [])), "the layer before is still in memory"
        fresh, parts = copied(super().layer(name))
        self.__dict__["last"] = [StorageWeakRef(part.untyped_storage()) for part in parts]
        return fresh

    def __iter__(self) -> Iterator[Layer]:
        return map(self.layer, self.names)


def copied(layer: Layer) -> tuple[Layer, list[Tensor]]:
    """Copy a layer; list the copy's tensors."""
    if isinstance(layer, LayerFactors):
        factors = tuple(Factors(*(part.clone() for part in each)) for each in layer.factors)
        return replace(layer, factors=factors), [part for each in factors for part in each]
    assert isinstance(layer, LayerDeltas)
    deltas = layer.deltas.clone()
    return replace(layer, deltas=deltas), [deltas]


@methods_that(lambda method: method.first_pass)
def test_a_first_pass_holds_one_layer_at_a_time(name: str) -> None:
    method = registry.get(name)
    for values in choices(name):
        method.bind(method.validate(name, values), with_start(method, OneAtATime(as_read(name, network(3)))))


@every_method
def test_a_merge_holds_one_layer_at_a_time(name: str, tmp_path: Path) -> None:
    method, layers = registry.get(name), as_read(name, network(3))
    source = with_start(method, OneAtATime(layers))
    base = {each: torch.zeros(shape) for each, shape in source.shapes.items()}
    save_tensors(tmp_path / "base.safetensors", base)
    for number, values in enumerate(choices(name)):
        out = tmp_path / str(number)
        out.mkdir()
        filled = method.validate(name, values)
        driver.merge_layers(
            method, filled, source, open_checkpoint(tmp_path / "base.safetensors"), out, torch.device("cpu")
        )
        assert open_checkpoint(out / "model.safetensors").names == tuple(sorted(source.names))


@dataclass(frozen=True)
class Weighed(ModelDeltas):
    """Deltas of models that note how many values of all tasks each layer had."""

    sizes: set[int] = field(default_factory=set)

    def rows(self, rows: Rows) -> LayerDeltas:
        layer = super().rows(rows)
        self.sizes.add(layer.deltas.numel())
        return layer

    def layer(self, name: str) -> Layer:
        layer = super().layer(name)
        assert isinstance(layer, LayerDeltas)
        self.sizes.add(layer.deltas.numel())
        return layer


@pytest.mark.parametrize(
    "name", ["task_arithmetic", "ties", "dare", "sparse_arithmetic", "breadcrumbs", "sce", "slerp", "arcee_fusion"]
)
def test_a_merge_by_rows_holds_pieces_of_a_large_parameter(name: str, tmp_path: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    shapes = {"map.weight": (PIECE // 2000, 3000), "map.bias": (3000,)}
    for model in ("base", "a", "b"):
        values = {each: torch.randn(shape, generator=drawn).bfloat16() for each, shape in shapes.items()}
        save_tensors(tmp_path / f"{model}.safetensors", values)
    base, *tuned = (open_checkpoint(tmp_path / f"{model}.safetensors") for model in ("base", "a", "b"))
    plain = open_models(base, dict(zip("ab", tuned, strict=True)), ParameterRules())
    source = Weighed(plain.base, plain.models, plain.all_kinds)
    method, out = registry.get(name), tmp_path / "out"
    out.mkdir()
    driver.merge_layers(method, method.validate(name, {}), source, base, out, torch.device("cpu"), threads=2)
    assert max(source.sizes) <= PIECE < 2 * base.read("map.weight").numel()
    merged = open_checkpoint(out)
    assert torch.isfinite(merged.read("map.weight")).all()
    assert merged.names == base.names


def test_keeping_a_view_of_a_layer_is_noticed() -> None:
    source = OneAtATime(network(2))
    with torch.inference_mode(), pytest.raises(AssertionError, match="still in memory"):
        [layer.deltas[0, :1] for layer in source if isinstance(layer, LayerDeltas) and layer.deltas.ndim > 1]
