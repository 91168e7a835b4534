"""Gram matrices: the mean of x x^T over all rows x that a linear map is applied to, for each distinct input.

Legend: N rows, K inputs of a map.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.factors import parameter_file_name
from merganser.inputs.layers import Side
from merganser.inputs.statistics import StatisticsIndex, pack_triangle
from merganser.models import Network
from merganser.models.naming import name_tensors
from merganser.outputs import remove_others
from merganser.statistics import BUDGET, in_passes, is_up_to_date, write_statistic
from merganser.statistics.sampling import Sample
from merganser.statistics.setting import Setting

GRAM = "gram"  # the folder of what is measured
BATCH = 32


def measure(setting: Setting, folder: Path) -> tuple[StatisticsIndex, int]:
    """Measure the Gram matrices of the task's model's linear maps, in `folder`/gram."""
    sample = setting.load(setting.deltas)
    matrices = {name for name, kind in setting.deltas.kinds.items() if kind == "matrix"}
    files, done = write_grams(setting.setup.network, sample, matrices, folder, setting.origin, setting.budget)
    sides = setting.setup.network.linear_maps()
    turned = {name: _side(sides[name], name in setting.base.transposed) for name in files}
    return StatisticsIndex(len(sample), len(sample), 0, {GRAM: files}, turned), done


def _side(side: Side, transposed: bool) -> Side:
    """Return the side of the deltas that a map's inputs lie on: the other one where these are shown transposed."""
    if not transposed:
        return side
    return "columns" if side == "rows" else "rows"


def write_grams(
    network: Network, sample: Sample, names: Collection[str], folder: Path, origin: str, budget: int = BUDGET
) -> tuple[dict[str, str], int]:
    """Measure the Gram matrices of a loaded network's linear maps of these names, of those that its pass applies.

    Fills `folder`/gram with a file for each distinct input, keeping what was measured from the same `origin`. Returns
    each map's file, and how many files were measured.
    """
    refuse_parts(network, names)
    (folder / GRAM).mkdir(parents=True, exist_ok=True)
    inputs = distinct_inputs(network, sample, names)
    firsts = {members[0]: size for members, size in inputs}
    remove_others(folder / GRAM, {parameter_file_name(first) for first in firsts})
    missing = [first for first in firsts if not is_up_to_date(folder / GRAM, first, origin)]
    for group in in_passes(missing, lambda first: 4 * firsts[first] ** 2, budget):
        for first, gram in grams(network, sample, group).items():
            if not gram.isfinite().all():
                raise InputError(f"{sample.prepared.folder}: the input of {first} is NaN or infinite on these examples")
            write_statistic(folder / GRAM, first, pack_triangle(gram), origin)
    return {name: parameter_file_name(members[0]) for members, _ in inputs for name in members}, len(missing)


def refuse_parts(network: Network, names: Collection[str]) -> None:
    """Refuse matrices whose inputs are not seen, for the network computes with several of them as one parameter."""
    if parts := set(network.parts()) & set(names):
        raise InputError(
            f"statistics: the network stacks or splits {name_tensors(sorted(parts))} on loading, so no Gram matrix of "
            "their inputs is measured; leave them out with parameters.merged, or take a method that reads no Gram "
            "matrices"
        )


@torch.inference_mode()
def distinct_inputs(network: Network, sample: Sample, names: Collection[str]) -> list[tuple[list[str], int]]:
    """Group the maps that are applied to the same tensors, as attention's queries, keys and values are; with their K.

    Found by a forward pass of one example.
    """
    seen: dict[str, list[Tensor]] = {}  # kept, so that no later tensor takes an earlier one's place in memory

    def take(name: str, rows: Tensor) -> None:
        if name in names:
            seen.setdefault(name, []).append(rows)

    first = replace(sample, numbers=sample.numbers[:1])
    with network.watch(take):
        for inputs in first.batches(network, 1):
            network.features(inputs)
    groups: dict[object, list[str]] = {}
    for name in sorted(seen):
        places = tuple((rows.data_ptr(), rows.shape, rows.stride()) for rows in seen[name])
        groups.setdefault(places, []).append(name)
    return [(members, seen[members[0]][0].shape[1]) for members in groups.values()]


@torch.inference_mode()
def grams(network: Network, sample: Sample, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the mean of x x^T (K, K) over all rows of all examples for each of these maps, in float32."""
    sums: dict[str, Tensor] = {}
    counts, wanted = Counter[str](), frozenset(names)

    def take(name: str, rows: Tensor) -> None:
        if name not in wanted:
            return
        values = rows.float()
        sums[name] = torch.addmm(sums[name], values.T, values) if name in sums else values.T @ values
        counts[name] += len(rows)

    with network.watch(take):
        for inputs in sample.batches(network, BATCH):
            network.features(inputs)
    return {name: total.div(counts[name]).cpu() for name, total in sums.items()}
