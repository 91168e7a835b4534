"""Gram matrices: the mean of x x^T over all rows x that a linear map is applied to, for each distinct input.

Legend: N rows, K inputs of a map.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from merganser.statistics.sampling import Sample, Setting

GRAM = "gram"  # the folder of what is measured
BATCH = 32


def measure(setting: Setting, folder: Path) -> tuple[StatisticsIndex, int]:
    """Measure the Gram matrices of the task's model's linear maps, in `folder`/gram."""
    sample = setting.load(setting.deltas)
    matrices = {name for name, kind in setting.deltas.kinds.items() if kind == "matrix"}
    files, done = write_grams(setting.setup.network, sample, matrices, folder, setting.origin, setting.budget)
    sides = setting.setup.network.linear_maps()
    turned = {name: _side(sides[name], name in setting.base.transposed) for name in files}
    unreached = unreached_maps(setting.setup.network, matrices, files)
    return StatisticsIndex(len(sample), len(sample), 0, {GRAM: files}, turned, unreached), done


def unreached_maps(network: Network, names: Collection[str], reached: Collection[str]) -> list[str]:
    """Name the linear maps among `names` that no example reached, such as experts that were never chosen."""
    return sorted((network.linear_maps().keys() & set(names)) - set(reached))


def _side(side: Side, transposed: bool) -> Side:
    """Return the side of the deltas with a map's inputs: the other one if the delta is transposed."""
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
    inputs = distinct_inputs(network, [sample], names)
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
    """Refuse matrices that the network uses only as parts of one parameter, since their inputs are not seen."""
    if parts := set(network.parts()) & set(names):
        raise InputError(
            f"statistics: the network stacks or splits {name_tensors(sorted(parts))} on loading, so no Gram matrix of "
            "their inputs is measured; leave them out with parameters.merged, or take a method that reads no Gram "
            "matrices"
        )


@torch.inference_mode()
def distinct_inputs(network: Network, samples: Sequence[Sample], names: Collection[str]) -> list[tuple[list[str], int]]:
    """Group the maps by the tensor that they are applied to, as attention's queries, keys and values; with K.

    It runs one example, and further ones until all maps are applied: one example may not reach every expert.
    """
    places, sizes = defaultdict[str, list[object]](list), dict[str, int]()
    for number, rows_of in enumerate(applied_one_by_one(network, samples, names)):
        seen: dict[str, list[Tensor]] = {}  # kept, so that no later tensor takes an earlier one's place in memory
        for name, rows in rows_of:
            seen.setdefault(name, []).append(rows)
        for name, inputs_seen in seen.items():
            places[name].append((number, *((rows.data_ptr(), rows.shape, rows.stride()) for rows in inputs_seen)))
            sizes[name] = inputs_seen[0].shape[1]
    groups: dict[object, list[str]] = {}
    for name in sorted(places):
        groups.setdefault(tuple(places[name]), []).append(name)
    return [(members, sizes[members[0]]) for members in groups.values()]


def applied_one_by_one(
    network: Network, samples: Sequence[Sample], names: Collection[str]
) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield which of these maps a forward pass applies to which rows, example by example, until all are applied."""
    missing = network.linear_maps().keys() & set(names)
    alone = (replace(sample, numbers=(number,)) for sample in samples for number in sample.numbers)
    for example in alone:
        applied = _applied(network, example, names)
        yield applied
        missing -= {name for name, _ in applied}
        if not missing:
            return


def _applied(network: Network, sample: Sample, names: Collection[str]) -> list[tuple[str, Tensor]]:
    applied: list[tuple[str, Tensor]] = []
    with network.watch(lambda name, rows: applied.append((name, rows)) if name in names else None):
        for inputs in sample.batches(network, 1):
            network.features(inputs)
    return applied


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
