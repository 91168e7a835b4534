"""Statistics of a model on a task's data: each kind measures one property of a network's parameters.

A kind is a module of `merganser/statistics/kinds/`, found by its file name; params.yaml names it as `kind` of a
statistic. It measures in passes over the examples, with as many parameters per pass as memory allows, and writes files
at the end of each pass: a kill loses one pass.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError, did_you_mean
from merganser.inputs.factors import fingerprint_of, parameter_file_name
from merganser.plugins import STATISTICS, load, module_names, places_of

if TYPE_CHECKING:  # this module is part of all that lies beside it
    from merganser.inputs.statistics import StatisticsIndex
    from merganser.statistics.sampling import Setting

BUDGET = 2**32  # bytes of what a pass adds up; a constant, since memory that happens to be free must not decide


class StatisticKind(Protocol):
    """The functions of a kind's module.

    It may also define, as literals: `OF_BASE = True` if the base is measured on each task's data too, as
    `base_<kind>`; `NEEDS_CLASSES = True` if it needs class probabilities; `BACKWARDS = True` if an example takes a
    backward pass.
    """

    def measure(self, setting: "Setting", folder: Path) -> "tuple[StatisticsIndex, int]":
        """Fill a folder with one file per parameter; return its index, and how many were measured.

        A file has a tensor of the parameter's shape, or (`pack_triangle`) a symmetric one over a map's inputs.
        Files measured from the same `setting.origin` are kept.
        """


def get_kind(name: str) -> StatisticKind:
    """Return a kind's module; raise InputError with the nearest name if there is none."""
    known = module_names(places_of(STATISTICS))
    if name not in known:
        raise InputError(f"{name!r} is not a kind of statistic; known: {', '.join(known)}{did_you_mean(name, known)}")
    kind: StatisticKind = load(STATISTICS, name, StatisticKind)
    return kind


def in_passes(names: Iterable[str], size: Callable[[str], int], budget: int) -> Iterator[list[str]]:
    """Divide names into passes, in order: as many per pass as the budget allows, at least one.

    >>> list(in_passes(["a", "b", "c"], lambda name: 2, 5))
    [['a', 'b'], ['c']]
    """
    group: list[str] = []
    for name in names:
        if group and sum(map(size, group)) + size(name) > budget:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def is_up_to_date(folder: Path, name: str, origin: str) -> bool:
    """Tell whether a parameter's file exists and was measured from the same origin."""
    return fingerprint_of(folder / parameter_file_name(name)) == origin


def write_statistic(folder: Path, name: str, value: Tensor, origin: str) -> None:
    """Write a parameter's statistic in float32, completely or not at all."""
    save_tensors(folder / parameter_file_name(name), {folder.name: value.float()}, json.dumps({"fingerprint": origin}))
