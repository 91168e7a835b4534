"""The driver: walk the layers, merge each, add the base, write. Written once, for all methods and devices.

Memory is O(T x largest layer): layers are read, merged and written one at a time, or one a thread, or on a GPU while
the next is on its way there.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.shards import shards_like, shards_of
from merganser.checkpoints.views import as_stored, stored_specs
from merganser.checkpoints.writing import write_model
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerSource, ThreadedLayers
from merganser.merging.devices import CudaStreams, full_precision, on_device
from merganser.merging.method import Method, Result
from merganser.overlays import OverlayWriter, Parts
from merganser.workers import one_blas_thread


def choose_device(wanted: str) -> torch.device:
    """Turn auto, cpu or cuda into a device; raise InputError when there is no GPU and one was asked for."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: must be auto, cpu or cuda, got {wanted!r}")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable GPU; use --device cpu or auto")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def merge(
    method: Method,
    values: dict[str, Any],
    source: LayerSource,
    base: Checkpoint,
    out: Path,
    device: torch.device,
    threads: int = 1,
    max_shard_size: int | None = None,
) -> None:
    """Merge every layer of the source onto the base and write the model (and the overlays) into a folder.

    It is sharded as the base is, or into files of at most `max_shard_size` bytes. `threads`: layers at once; the bytes
    written do not depend on it. A GPU takes one layer after another.
    """
    layers = ThreadedLayers(source, threads) if device.type == "cpu" else on_device(source, CudaStreams(device))
    with one_blas_thread(), full_precision(), torch.inference_mode():
        merge_layer = method.bind(values, layers)
        with OverlayWriter(out, source.tasks) if method.overlay else nullcontext() as overlay:
            linear = {name for name in source.names if len(base.spec(name).shape) == 2}
            kept = linear if method.gated else set(source.names)
            specs, tensors = stored_specs(base), _merged(merge_layer, layers, base, overlay, kept)
            files = shards_of(specs, max_shard_size) if max_shard_size else shards_like(base)
            write_model(out, specs, ((name, as_stored(base, name, tensor)) for name, tensor in tensors), files)


def _merged(
    merge_layer: Callable[[Layer], Result],
    layers: LayerSource,
    base: Checkpoint,
    overlay: OverlayWriter | None,
    kept: Collection[str],
) -> Iterator[tuple[str, Tensor]]:
    """Merge layer by layer; of `kept` parameters the parts are stored, the others stay the base's."""

    def onto_base(name: str, result: Result) -> Result:
        return result if isinstance(result, Parts) else added(base.read(name), result)

    if isinstance(layers, ThreadedLayers):
        results = layers.map(lambda layer: onto_base(layer.name, merge_layer(layer)))
    else:  # results come back from a GPU, which goes on with the next meanwhile
        results = map(onto_base, layers.names, layers.map(merge_layer))
    others = iter(sorted(set(base.names) - set(layers.names)))
    for name in layers.names:
        result = next(results)
        if isinstance(result, Parts):
            assert overlay is not None, "a method that gives parts is registered with overlay=True"
            overlay.add(name, result if name in kept else Parts(), base.spec(name).shape)
            result = base.read(name)
        yield name, result
        del result  # before the next layer is read: parts may be views of this one
        for other in islice(others, 1):  # while layers are merged: at the end nothing else would be done meanwhile
            yield other, base.read(other)
    for other in others:
        yield other, base.read(other)
