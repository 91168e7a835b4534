"""The driver: walk the layers, merge each, add the base, write. Written once, for all methods and devices.

Memory is O(T x largest layer): layers are read, merged and written one at a time.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints import Checkpoint, write_checkpoint
from merganser.errors import InputError
from merganser.layers import Factors, Kind, Layer, LayerDeltas, LayerLowRank, LayerSource
from merganser.overlays import OverlayWriter, Parts
from merganser.parameters import added
from merganser.registry import Method

MODEL = "model.safetensors"


@dataclass(frozen=True)
class OnDevice:
    """A source whose layers are on a device."""

    source: LayerSource
    device: torch.device

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return self.source.tasks

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""
        return self.source.names

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of one task's delta of each parameter."""
        return self.source.shapes

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Return each parameter's kind."""
        return self.source.kinds

    @property
    def embeddings(self) -> Mapping[str, Tensor]:
        """Return the text embedding of each task's class names."""
        return self.source.embeddings

    def layer(self, name: str) -> Layer:
        """Read one parameter of all tasks and move it."""
        layer = self.source.layer(name)
        if isinstance(layer, LayerDeltas):
            return replace(layer, deltas=layer.deltas.to(self.device))
        if isinstance(layer, LayerLowRank):
            left, right = (tuple(t.to(self.device) for t in side) for side in (layer.left, layer.right))
            return replace(layer, left=left, right=right)
        return replace(layer, factors=tuple(Factors(*(t.to(self.device) for t in f)) for f in layer.factors))

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(name) for name in self.names)


def choose_device(wanted: str) -> torch.device:
    """Turn auto, cpu or cuda into a device; raise InputError when there is no GPU and one was asked for."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: must be auto, cpu or cuda, got {wanted!r}")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable GPU; use --device cpu or auto")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def merge(
    method: Method, values: dict[str, Any], source: LayerSource, base: Checkpoint, out: Path, device: torch.device
) -> None:
    """Merge every layer of the source onto the base and write `model.safetensors` (and the overlays) into a folder."""
    layers = OnDevice(source, device)
    with torch.inference_mode():
        prepared = method.first_pass(layers, values)
        with OverlayWriter(out, source.tasks) if method.overlay else nullcontext() as overlay:
            specs = {name: base.spec(name) for name in base.names}
            write_checkpoint(out / MODEL, specs, _merged(method, values, layers, base, prepared, overlay))


def _merged(
    method: Method,
    values: dict[str, Any],
    layers: OnDevice,
    base: Checkpoint,
    prepared: Any,
    overlay: OverlayWriter | None,
) -> Iterator[tuple[str, Tensor]]:
    merged = set(layers.names)
    for name in base.names:
        weights = base.read(name)
        if name in merged:
            result = method.apply(replace(layers.layer(name), prepared=prepared), values)
            if isinstance(result, Parts):
                assert overlay is not None, f"{method.name} gave parts and is not registered with overlay=True"
                overlay.add(name, result, tuple(weights.shape))
            else:
                weights = added(weights, result)
            del result  # before the next layer is read: parts may be views of this one
        yield name, weights
