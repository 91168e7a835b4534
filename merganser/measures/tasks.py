"""All measures between a comparison's tasks, layer by layer.

Shape legend: T tasks, M rows, N columns, R = min(M, N).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerFactors, LayerLowRank, LayerSource, ThreadedLayers, dense_layer
from merganser.linalg.counts import count_of
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise, leading
from merganser.measures import bounds
from merganser.measures.agreement import layer_agreement, sign_agreement
from merganser.measures.alignment import (
    delta_cosines,
    delta_inner_products,
    effective_rank,
    energy_share,
    truncation_error,
)
from merganser.measures.interference import row_space_interference, task_interference, task_interference_after_tsv_m
from merganser.measures.spaces import agreement_histograms, dropped_shares, vector_products
from merganser.operators.drm import joint_space

RANK_FRACTION = 0.08  # of R: CART's value for truncations and row spaces
MEASURE_WORK = 34  # peak memory, in float32 copies of the layer: 24 to 33 were measured, of 2 to 8 tasks


def measure_tasks(deltas: LayerSource, factors: LayerSource, threads: int = 1) -> dict[str, Any]:
    """Measure every layer of the tasks' deltas, and the whole vectors' cosines. Undefined numbers are NaN.

    `threads`: layers at a time, fewer if memory is short; the numbers are the same.
    """
    deltas = ThreadedLayers(deltas, threads, MEASURE_WORK)
    products = torch.zeros(len(deltas.tasks), len(deltas.tasks), dtype=torch.float64)
    layers: dict[str, Any] = {}
    chains: dict[str, bounds.Distances] = {}
    for name, (own, chain, measured) in zip(deltas.names, deltas.map(partial(_of_layer, factors)), strict=True):
        products += own
        chains[name], layers[name] = chain, measured
    whole = reduce(bounds.Distances.plus, chains.values())
    for name, chain in chains.items():
        layers[name].setdefault("bounds", {}).update(_as_json(bounds.emr(deltas.tasks, chain, whole)))
    return {
        "tasks": list(deltas.tasks),
        "cosines": delta_cosines(products).tolist(),
        "bounds": _as_json(bounds.emr(deltas.tasks, whole, whole)),
        "layers": layers,
    }


def _of_layer(
    factors: LayerSource, layer: LayerDeltas | LayerLowRank
) -> tuple[Tensor, bounds.Distances, dict[str, Any]]:
    """Return one layer's inner products (T, T), its terms of EMR's distances, and its own measures."""
    dense = dense_layer(layer)
    assert isinstance(dense, LayerDeltas)
    deltas = dense.deltas
    own = delta_inner_products(deltas)
    measured: dict[str, Any] = {
        "kind": layer.kind,
        "shape": list(deltas.shape[1:]),
        "norms": own.diagonal().sqrt().tolist(),
        "cosines": delta_cosines(own).tolist(),
    }
    if layer.kind == "matrix":
        measured |= _of_matrix(layer, deltas, factors)
    else:
        measured["sign_agreement"] = {"weights": sign_agreement(deltas)}
    return own, bounds.emr_distances(deltas), measured


def _as_json(bounds_by_name: Mapping[str, bounds.Bound | None]) -> dict[str, Any]:
    return {name: None if bound is None else bound.as_json() for name, bound in bounds_by_name.items()}


def _of_matrix(layer: LayerDeltas | LayerLowRank, deltas: Tensor, factors: LayerSource) -> dict[str, Any]:
    decomposed = factors.layer(layer.name)
    assert isinstance(decomposed, LayerFactors)
    tasks = list(decomposed.factors)
    rank = max(1, count_of(RANK_FRACTION, min(decomposed.shape)))
    centred, space = list(_centred(deltas, rank)), joint_space(layer)
    return {
        "rank": rank,
        "effective_rank": [effective_rank(f.s) for f in tasks],
        "energy_share": [energy_share(f.s, rank) for f in tasks],
        "reconstruction_error": {
            "own": [truncation_error(f.s, rank) for f in tasks],
            "centred": [truncation_error(f.s, rank) for f in centred],
        },
        "row_space_interference": {
            "own": row_space_interference([_leading(f, rank) for f in tasks]).tolist(),
            "centred": row_space_interference([_leading(f, rank) for f in centred]).tolist(),
        },
        "interference": _interference(decomposed),
        "sign_agreement": {
            **layer_agreement(space, deltas),
            "pairs": _of_pairs(deltas, sign_agreement),
            "histograms": agreement_histograms(space, deltas),
        },
        "dropped": dropped_shares(space),
        "products": vector_products([_leading(f, len(f.s)) for f in tasks]),
        "bounds": _as_json(
            bounds.drm(layer.tasks, deltas, tasks)
            | {"tsv": bounds.tsv(decomposed.shape, tasks)}
            | bounds.star(layer.tasks, tasks)
        ),
    }


def _centred(deltas: Tensor, rank: int) -> Iterator[Factors]:
    """Decompose each task's delta minus the tasks' mean (CART); a difference of rounding errors counts as zero."""
    mean = deltas.double().mean(0)
    for delta in deltas:
        difference = delta - mean
        noise = max(delta.shape) * torch.finfo(delta.dtype).eps * torch.linalg.matrix_norm(delta)
        yield factorise(torch.where(torch.linalg.matrix_norm(difference) > noise, difference, 0).float(), rank)


def _leading(factors: Factors, rank: int) -> Factors:
    """Return at most `rank` stored leading triples."""
    return leading(factors, min(rank, factors.u.shape[1]))


def _interference(layer: LayerFactors) -> dict[str, Any] | None:
    """Measure STI with R // T components per task, before and after TSV-M; None for a matrix with fewer."""
    kept = min(layer.shape) // len(layer.tasks)
    if not kept:
        return None
    parts = [_leading(f, kept) for f in layer.factors]
    return {
        "rank": kept,
        "own": task_interference(parts),
        "after_tsv_m": task_interference_after_tsv_m(parts),
        "pairs": _of_pairs(parts, task_interference),
        "procrustes": {
            "u": bounds.procrustes_error([f.u for f in parts]),
            "v": bounds.procrustes_error([f.vh.mT for f in parts]),
        },
    }


def _of_pairs(tasks: Tensor | Sequence[Factors], measure: Callable[[Any], float]) -> list[list[float]]:
    """Measure all pairs of T tasks (T, T); NaN on the diagonal."""
    count = len(tasks)
    values = torch.full((count, count), torch.nan, dtype=torch.float64)
    for i, j in combinations(range(count), 2):
        pair = tasks[[i, j]] if isinstance(tasks, Tensor) else [tasks[i], tasks[j]]
        values[i, j] = values[j, i] = measure(pair)
    return values.tolist()
