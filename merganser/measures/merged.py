"""All measures of one merge against the tasks' deltas, layer by layer.

The merge is read from disk in the checkpoint's dtype, as the evaluation reads it. Shape legend: T tasks, M rows, N
columns.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.reading import Checkpoint, open_for_merging
from merganser.inputs.deltas import Deltas
from merganser.inputs.layers import LayerDeltas, LayerLowRank, LayerSource, ThreadedLayers, dense_layer
from merganser.linalg.svd import compact
from merganser.measures.alignment import (
    delta_cosines,
    delta_inner_products,
    effective_rank,
    leading_directions,
    subspace_alignment,
)
from merganser.overlays import open_overlays, task_parameters


def measure_merge(folder: Path, base: Checkpoint, deltas: Deltas, threads: int = 1) -> dict[str, Any]:
    """Measure how much of the tasks a merge's model, or models per task, retains. Undefined numbers are NaN.

    One model: in each layer its effective rank, the rank of its directions, and each task's alignment with them (SAR)
    and cosine with the merge. Models per task: the relative error of each task's delta, by layer and over all layers.
    `threads`: layers of one model at a time, fewer if memory is short; the numbers are the same.
    """
    if open_overlays(folder) is None:
        return {"parts": False, **_one_model(open_for_merging(folder), base, ThreadedLayers(deltas, threads))}
    return {"parts": True, **_models_per_task(folder, base, deltas)}


def _one_model(merged: Checkpoint, base: Checkpoint, deltas: LayerSource) -> dict[str, Any]:
    layers = dict(zip(deltas.names, deltas.map(partial(_of_layer, merged, base)), strict=True))
    ratios = [layer["sar"] for layer in layers.values() if "sar" in layer]
    means = torch.tensor(ratios, dtype=torch.float64).view(-1, len(deltas.tasks)).nanmean(0)
    return {"tasks": list(deltas.tasks), "sar": means.tolist(), "layers": layers}


def _of_layer(merged: Checkpoint, base: Checkpoint, layer: LayerDeltas | LayerLowRank) -> dict[str, Any]:
    dense = dense_layer(layer)
    assert isinstance(dense, LayerDeltas)
    own = dense.deltas
    delta = _difference(merged.read(layer.name), base.read(layer.name)).reshape(own.shape[1:])
    products = delta_inner_products(torch.cat([delta.unsqueeze(0), own]))
    measured = {"norm": float(products[0, 0].sqrt()), "cosines": delta_cosines(products)[0, 1:].tolist()}
    return measured | (_of_matrix(delta, own) if layer.kind == "matrix" else {})


def _of_matrix(merged: Tensor, deltas: Tensor) -> dict[str, Any]:
    factors = compact(merged)
    directions = leading_directions(factors)
    return {
        "rank": directions.shape[1],
        "effective_rank": effective_rank(factors.s),
        "sar": [subspace_alignment(delta, directions) for delta in deltas],
    }


def _models_per_task(folder: Path, base: Checkpoint, deltas: Deltas) -> dict[str, Any]:
    squares = torch.zeros(2, len(deltas.names), len(deltas.tasks), dtype=torch.float64)  # of the error, of the delta
    places = {name: place for place, name in enumerate(deltas.names)}
    for column, (task, file) in enumerate(deltas.files.items()):
        for name, weights in task_parameters(folder, task):
            if name in places:
                wanted = file.delta(name)
                error = _difference(weights, base.read(name)) - wanted
                squares[:, places[name], column] = torch.stack([_square(error), _square(wanted)])
    by_layer, overall = (s[0].sqrt() / s[1].where(s[1] > 0, torch.nan).sqrt() for s in (squares, squares.sum(1)))
    layers = {name: {"error": by_layer[place].tolist()} for name, place in places.items()}
    return {"tasks": list(deltas.tasks), "error": overall.tolist(), "layers": layers}


def _difference(weights: Tensor, base: Tensor) -> Tensor:
    return weights.to(torch.float32) - base.to(torch.float32)


def _square(values: Tensor) -> Tensor:
    return values.double().square().sum()
