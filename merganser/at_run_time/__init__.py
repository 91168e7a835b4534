"""Additions to a network at evaluation, for merges that are more than parameters.

An addition is a module of `merganser/at_run_time/additions/` with the functions of the protocol `Addition`. A method
names the addition of its merges; an evaluation finds it by its file in the merge's folder, which has the module's name.
Legend: T tasks.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from merganser.at_run_time import additions
from merganser.inputs.heads import NO_HEAD, Head
from merganser.inputs.layers import LayerSource
from merganser.models import Network
from merganser.overlays import task_model
from merganser.plugins import ADDITIONS, load, module_names

Section = Literal["routers", "surgery"]  # of params.yaml: what is trained for a merge


@dataclass
class Counts:
    """How often each task was chosen: by tokens and layers, or by examples and blocks."""

    tasks: tuple[str, ...]
    counts: Tensor = field(init=False)  # (T,)

    def __post_init__(self) -> None:
        self.counts = torch.zeros(len(self.tasks), dtype=torch.int64)

    def take(self, choice: Tensor) -> None:
        """Count chosen tasks, given by number."""
        self.counts += torch.bincount(choice.cpu(), minlength=len(self.tasks))

    def accuracy(self, task: str) -> float:
        """Return a task's share."""
        return float(self.counts[self.tasks.index(task)] / self.counts.sum())


class Running(NamedTuple):
    """A network with a merge's addition, and the tasks that it chose for its inputs; None if the task is given."""

    network: Network
    counts: Counts | None


class Addition(Protocol):
    """The functions of an addition's module."""

    FILE: str  # that a merge keeps for it; its name without the ending is the module's
    HOLDS: str  # what is in that file, for the card of a merge
    TRAINED: Section | None  # where the entry of a method with it reads the file; None: it follows from the merge
    TASK_GIVEN: bool  # whether an input's task is given; else it is chosen by what the input looks like

    def write(self, folder: Path, values: Mapping[str, Any], source: LayerSource, read: Path) -> None:
        """Write the file into a merge's folder; `read`: the folder of the entry's input."""

    def put_in(self, network: Network, merged: Path, task: str, head: Head) -> AbstractContextManager[Running]:
        """Load a merge and a task's head into a network, and apply the addition while the block runs.

        An addition that chooses the task itself ignores `task`.
        """


def addition_of(merged: Path) -> Addition | None:
    """Return the addition in a merge's folder; None for a merge of parameters alone."""
    for name in module_names(additions.__path__):
        if any(merged.glob(f"{name}.*")):
            addition: Addition = load(ADDITIONS, name, Addition)
            if (merged / addition.FILE).is_file():
                return addition
    return None


@contextmanager
def running(network: Network, merged: Path, task: str = "", head: Head = NO_HEAD) -> Iterator[Running]:
    """Load a merge, with a task's head instead of its own, into a network, with its addition while the block runs.

    The network keeps the parameters. `task`: not needed if the addition chooses it from the input.
    """
    addition = addition_of(merged)
    if addition is None:
        network.load(head.put_on(task_model(merged, task)))
        yield Running(network, None)
    else:
        with addition.put_in(network, merged, task, head) as changed:
            yield changed
