"""Statistics of a model on a task's data: kinds of them, each of which measures its own of a network's parameters.

A kind is a module of `merganser/statistics/kinds/`, found by its file name; params.yaml names it as `kind` of a
statistic. It measures in passes over the examples, so many parameters a pass as memory allows, and each file is written
when its pass ends: a killed measurement loses one pass.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError, did_you_mean
from merganser.inputs.factors import fingerprint_of, parameter_file_name
from merganser.plugins import STATISTICS, module_names, places_of

if TYPE_CHECKING:  # this module is part of all that lies beside it
    from merganser.inputs.statistics import StatisticsIndex
    from merganser.statistics.setting import Setting

FOUND_BY_NAME = "merganser.statistics.kinds.*"  # the code of whatever measures a statistic
BUDGET = 2**32  # bytes of what a pass adds up; a constant, since memory that happens to be free must not decide


class StatisticKind(Protocol):
    """What the module of a kind holds.

    It may write out, to be read without importing it: `OF_BASE = True` where it can be measured of the base on each
    task's data too, as `base_<kind>`; `NEEDS_CLASSES = True` where it needs the probabilities of classes;
    `BACKWARDS = True` where an example takes a backward pass.
    """

    def measure(self, setting: "Setting", folder: Path) -> "tuple[StatisticsIndex, int]":
        """Fill a folder of what is measured with a file a parameter; return its index, and how many were measured.

        A file holds a tensor of the parameter's shape, or (`pack_triangle`) a symmetric one over a map's inputs. What
        was measured from the same `setting.origin` is kept.
        """


def get_kind(name: str) -> StatisticKind:
    """Return a kind's module; raise InputError with the nearest name where there is none of this one."""
    known = module_names(places_of(STATISTICS))
    if name not in known:
        raise InputError(f"{name!r} is not a kind of statistic; known: {', '.join(known)}{did_you_mean(name, known)}")
    kind: StatisticKind = import_module(f"merganser.{STATISTICS}.{name}")
    return kind


def in_passes(names: Iterable[str], size: Callable[[str], int], budget: int) -> Iterator[list[str]]:
    """Share names out to passes, in their order: as many a pass as the budget allows, at least one.

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
    """Tell whether a parameter's file is there and was measured from the same."""
    return fingerprint_of(folder / parameter_file_name(name)) == origin


def write_statistic(folder: Path, name: str, value: Tensor, origin: str) -> None:
    """Write what was measured of a parameter, whole or not at all."""
    save_tensors(folder / parameter_file_name(name), {folder.name: value}, json.dumps({"fingerprint": origin}))
