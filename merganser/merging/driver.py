"""The driver: walk the layers, merge each, add the base, write. Written once, for all methods and devices.

Memory is O(T x largest layer): layers are read, merged and written one at a time, or one a thread, or on a GPU while
the next is on its way there. It is O(T x piece), whatever the size, for methods that merge by rows or read a
parameter's pieces before they merge them; a GPU's pieces are larger.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.kinds import added, as_matrix, bias_of, is_measured
from merganser.checkpoints.reading import Checkpoint, place_of, read_part, written_as
from merganser.checkpoints.tensors import Part, parameter_of, tensor_name
from merganser.checkpoints.views import part_in_file
from merganser.checkpoints.writing import AS_THE_BASE, OutputFormat, Tensors, write_model
from merganser.errors import InputError, refusing
from merganser.inputs.layers import (
    Layer,
    LayerDeltas,
    LayerSource,
    Learned,
    MappedLayers,
    ThreadedLayers,
    WrappedSource,
    dense_layer,
    part_of,
    weights_of,
)
from merganser.inputs.model_deltas import ModelDeltas
from merganser.inputs.pieces import PIECE, PiecedLayers, in_pieces, pieces_of
from merganser.inputs.watched import WatchedLayers
from merganser.merging import devices
from merganser.merging.binding import check_patterns
from merganser.merging.devices import CudaStreams, DeviceLayers, full_precision
from merganser.merging.method import Method, Result
from merganser.operators.vectors import whole
from merganser.overlays import OverlayWriter, Parts
from merganser.progress import Progress, unwatched, watched
from merganser.workers import one_blas_thread


def choose_device(wanted: str) -> torch.device:
    """Turn auto, cpu or cuda into a device; raise InputError when there is no GPU and one was asked for."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: must be auto, cpu or cuda, got {wanted!r}")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable GPU; use --device cpu or auto")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def merge_layers(
    method: Method,
    values: dict[str, Any],
    source: LayerSource,
    base: Checkpoint,
    out: Path,
    device: torch.device,
    threads: int = 1,
    output: OutputFormat = AS_THE_BASE,
    progress: Progress = unwatched,
) -> None:
    """Merge every layer of the source onto the base and write the model (and the overlays) into a folder.

    `threads`: layers at once; the bytes written do not depend on it. A GPU takes one layer after another. `progress`
    is told the bytes that are written, and before that the bytes of the layers of a first pass.
    """
    copies = method.copies + (not method.shipped)  # a method of one's own is given copies
    if device.type == "cpu":
        layers: LayerSource = ThreadedLayers(in_pieces(source, method.divided), threads, copies)
    else:
        layers = DeviceLayers(in_pieces(source, method.divided, devices.PIECE), CudaStreams(device), base)
        passes = 2 if method.by_parameter else 1  # at a time: one over a parameter while its first piece waits
        devices.check_memory(layers, copies + passes * devices.ON_THEIR_WAY, device)
    layers = with_base(layers, base) if method.takes_base(values) else layers
    check_patterns(values, base.names)
    stays = refusing(f"{method.name}: its code ends the program", "let it return or raise instead", SystemExit)
    with stays, one_blas_thread(), full_precision(), torch.inference_mode():
        merge_weights = method.bind(values, WatchedLayers(weights_of(layers), f"{method.name}: first pass", progress))
        merge_layer = _with_measured(method, merge_weights, layers.table.learned)
        with OverlayWriter(out, source.tasks) if method.overlay else nullcontext() as overlay:
            kept = _of_linear_maps(source, base) if method.linear_maps else set(source.names)
            others = _others(base, set(base.names) - set(source.names))
            specs, tensors = output.specs(base), _merged(merge_layer, layers, base, overlay, kept, output, others)
            total = sum(spec.nbytes for spec in specs.values())
            # as the base's file has it; rows are read of tensors that are shown as they are stored
            stored = (part_in_file(base, part, x) if isinstance(part, str) else (part, x) for part, x in tensors)
            shown = watched(stored, lambda one: one[1].nbytes, total, f"{method.name}: merging", progress)
            write_model(out, specs, shown, output.shards(base), written_as(base))


def _with_measured(
    method: Method, merge_weights: Callable[[Layer], Result], learned: Learned | None
) -> Callable[[Layer], Result]:
    """Average batch-normalisation statistics, whatever the method; next to a shared model each task keeps its own.

    So no variance or count falls below zero. Learned statistics replace the average.
    """
    merge_measured: Callable[..., Result] = whole if method.overlay else method.measured
    known = learned.values if learned else {}

    def merge(layer: Layer) -> Result:
        if not is_measured(layer.name):
            return merge_weights(layer)
        return known[layer.name] if layer.name in known else merge_measured(layer)

    return merge


def _of_linear_maps(source: LayerSource, base: Checkpoint) -> set[str]:
    """Name the weights of linear maps, without convolutions, and their biases."""
    alone = {name: kind for name, kind in source.kinds.items() if parameter_of(name) == name}  # in no stack
    weights = {name for name, kind in alone.items() if kind == "matrix" and len(base.spec(name).shape) == 2}
    return weights | ({bias_of(name) for name in weights} & set(source.names))


def _model_alone(source: LayerSource) -> Checkpoint | None:
    """Return the only model of a merge of one: if the result is its delta, its own weights are written, bit for bit."""
    while isinstance(source, WrappedSource | PiecedLayers):
        source = source.source
    models = list(source.models.values()) if isinstance(source, ModelDeltas) else []
    return models[0] if len(models) == 1 and isinstance(models[0], Checkpoint) else None


def with_base(source: LayerSource, base: Checkpoint) -> LayerSource:
    """Return a source of dense deltas whose layers also have the base's weights."""

    def beside(layer: Layer) -> Layer:
        dense = dense_layer(layer)
        assert isinstance(dense, LayerDeltas), "a method on the models' weights reads deltas"
        weights = read_part(base, part_of(dense)) if dense.start is None else dense.start
        weights = as_matrix(weights) if dense.kind == "matrix" else weights
        return replace(dense, base=weights.to(dense.dtype))

    return MappedLayers(source, beside)


def _merged(
    merge_layer: Callable[[Layer], Result],
    layers: LayerSource,
    base: Checkpoint,
    overlay: OverlayWriter | None,
    kept: Collection[str],
    output: OutputFormat,
    others: Iterable[Part],
) -> Tensors:
    """Merge layer by layer; store parts of the `kept` parameters only. `others` and the rest stay the base's."""

    alone = _model_alone(layers)

    def merged_onto_base(layer: Layer) -> tuple[Part, Result]:
        part, result = part_of(layer), merge_layer(layer)
        if isinstance(result, Parts) and overlay is not None:
            return part, result
        if not isinstance(result, Tensor) or result.shape != layer.shape:
            given = result.shape if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{part}: the method returned {given}, and should return a tensor of {layer.shape}")
        if not result.is_floating_point() or result.layout != torch.strided:
            raise InputError(
                f"{part}: the method returned a tensor of {result.dtype} and {result.layout}, and should return a "
                "dense one of floating-point numbers"
            )
        start = read_part(base, part) if layer.start is None else layer.start  # where the layer is
        own = None if alone is None else read_part(alone, part).to(start.device, torch.float32)
        is_own = own is not None and torch.equal(own - start.to(torch.float32), result.reshape(start.shape))
        merged = own if own is not None and is_own else added(start, result, torch.float32)
        if not isfinite(merged.sum()) and not merged.isfinite().all():
            large, none = "values beyond float32's largest, 3.4e38; scale it down", "values that are no numbers (NaN)"
            raise InputError(f"{part}: the merge has {large if merged.isinf().any() else none}")
        return part, output.held(str(part), merged, base.spec(tensor_name(part)).dtype)

    def of_base(part: Part) -> Tensor:
        stored, values = base.spec(tensor_name(part)).dtype, read_part(base, part)
        return values if output.dtype_of(stored) == values.dtype else output.held(str(part), values, stored)

    left = iter(others)
    for part, result in layers.map(merged_onto_base):
        if isinstance(result, Parts):
            assert overlay is not None, "others are refused where they are merged"
            name = tensor_name(part)
            overlay.add(name, result if name in kept else Parts(), base.spec(name).shape)
            result = of_base(part)
        yield part, result
        del result  # before the next layer is read: parts may be views of this one
        for other in islice(left, 1):  # while layers are merged: at the end nothing else would be done meanwhile
            yield other, of_base(other)
    for other in left:
        yield other, of_base(other)


def _others(base: Checkpoint, names: Collection[str]) -> Iterator[Part]:
    """Yield the parameters that stay the base's, in pieces."""
    for name in sorted(names):
        shape = base.spec(name).shape
        yield from pieces_of(name, shape, PIECE) if shape and place_of(base, name) else [name]
