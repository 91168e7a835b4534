"""Statistics of a model on a task's data: Gram matrices of the inputs of linear maps, diagonal Fisher information.

They are measured in passes over the examples, so many parameters a pass as memory allows, and each file is written when
its pass ends: a killed measurement loses one pass.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.writing import save_tensors
from merganser.inputs.factors import fingerprint_of, parameter_file_name

BUDGET = 2**32  # bytes of what a pass adds up; a constant, since memory that happens to be free must not decide


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
