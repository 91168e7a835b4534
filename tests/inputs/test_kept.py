"""Layers that stay in memory where they fit, whatever wraps them."""

from dataclasses import dataclass, replace

import pytest
import torch

from merganser.inputs import kept
from merganser.inputs.kept import kept_in_memory
from merganser.inputs.layers import Layer, LayerDeltas, MappedLayers, ThreadedLayers
from tests.laws.layers import Layers
from tests.laws.samples import network


@dataclass(frozen=True)
class Counted:
    """Layers that are doubled when they are read, and counted."""

    names: list[str]

    def __call__(self, layer: Layer) -> Layer:
        assert isinstance(layer, LayerDeltas)
        self.names.append(layer.name)
        return replace(layer, deltas=2 * layer.deltas)


@pytest.mark.parametrize("threads", [1, 3])
def test_layers_that_fit_are_read_once(threads: int) -> None:
    layers, counted = Layers(network(3)), Counted([])
    source = kept_in_memory(MappedLayers(ThreadedLayers(layers, threads), counted))
    for _ in range(3):
        sums = list(source.map(lambda layer: layer.deltas.sum()))
    assert sorted(counted.names) == sorted(layers.names)
    assert source.layer(layers.names[0]) is source.layer(layers.names[0])
    torch.testing.assert_close(torch.stack(sums), torch.stack([2 * layer.deltas.sum() for layer in layers]))


@pytest.mark.parametrize(("cpus", "share", "stays"), [(1, 1.0, True), (2, 1.0, False), (1, 0.9, False)])
def test_layers_stay_in_memory_where_all_of_them_fit(
    cpus: int, share: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = Layers(network(3))
    needed = kept.BYTES * layers.entries * 3 / kept.SHARE
    monkeypatch.setattr(kept, "available_memory", lambda: int(needed * share))
    monkeypatch.setattr(kept, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(kept, "threads_wanted", lambda: 1)
    assert (kept_in_memory(layers) is not layers) == stays
