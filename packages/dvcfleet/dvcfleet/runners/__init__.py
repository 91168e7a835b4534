"""Runners start the stages' commands; each module or package in this folder is one, by its name.

Other packages announce theirs by entry points of the group `dvcfleet.runners`: a name, and the module or object that
opens the runner.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dvcfleet.errors import UserError, in_one_line
from dvcfleet.messages import Job
from dvcfleet.planning.resources import Resources
from dvcfleet.project import announced_object
from dvcfleet.scheduling.resource_pool import Machine, ResourcePool, local_pool
from dvcfleet.terminal.machine_limits import usable_cpus

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner

GROUP = "dvcfleet.runners"


class Runner(Protocol):
    """One of Prefect's task runners, with what Prefect's interface lacks.

    `remote`: its workers start their own fork servers; other runners use those of this machine. `losses`: the errors by
    which a task run fails whose worker was lost.
    """

    task_runner: "TaskRunner[Any]"
    remote: bool
    losses: tuple[type[BaseException], ...]

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return the resources that stages may use; raise UserError for a stage that requests more than that."""

    def machines(self) -> Sequence[Machine] | None:
        """Return the cluster's machines as they are now; None for a runner that counts none."""

    def requesting(self, job: Job, /) -> AbstractContextManager[Any]:
        """Request what a job needs of the cluster, if possible on its machine, for tasks submitted within the block."""

    def end(self, future: "PrefectFuture[Any]") -> None:
        """End a task run on a remote worker, if it still runs."""


@dataclass(frozen=True)
class RunnerRequest:
    """A run's request to a runner: `workers` threads at once, at a cluster's `address`, for the repository at `root`.

    Without `workers`, there are as many threads as CPUs, or as the cluster has. `say` shows the user a line.
    """

    workers: int | None = None
    address: str | None = None
    root: Path = Path()
    say: Callable[[str], object] = print

    @property
    def threads_here(self) -> int:
        """The number of threads of a runner on this machine: as many as CPUs if not given."""
        return self.workers or usable_cpus()


class RunnerModule(Protocol):
    """Opens a runner. It is loaded before Prefect may be imported, and imports what it needs when it opens.

    `TAKES_ADDRESS`: whether it can connect to a running cluster.
    """

    TAKES_ADDRESS: bool

    def open_runner(self, asked: RunnerRequest) -> AbstractContextManager[Runner]:
        """Open the runner for a run's request, connected to the cluster at the address if one is given.

        Without an address, a cluster is started for the time of the block. Raises UserError if no cluster
        answers.
        """


@dataclass
class LocalRunner:
    """A runner on this machine: this process counts resources, and its fork servers start the commands.

    `requesting` requests resources of a cluster on this machine; it does nothing for threads and processes.
    """

    task_runner: "TaskRunner[Any]"
    threads: int
    requesting: Callable[[Job], AbstractContextManager[Any]] = lambda job: nullcontext()
    losses: tuple[type[BaseException], ...] = (BrokenExecutor,)
    remote = False

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return this machine's pool."""
        return local_pool(self.threads, resources)

    def machines(self) -> None:
        """Return None: this machine stays."""

    def end(self, future: "PrefectFuture[Any]") -> None:
        """Do nothing: the fork servers end what they started."""


@cache
def own_names() -> tuple[str, ...]:
    """List the runners of this folder, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def runner_names() -> list[str]:
    """List all runners: those of this folder, then those of installed packages."""
    announced = {each.name for each in entry_points(group=GROUP)}
    return [*own_names(), *sorted(announced.difference(own_names()))]


def load_runner(name: str) -> RunnerModule:
    """Return the module of a runner; raise UserError if there is none, or it cannot be loaded."""
    if name in own_names():
        own: RunnerModule = import_module(f"{__name__}.{name}")
        return own
    announced = list(entry_points(group=GROUP, name=name))
    if not announced:
        raise UserError(f"no runner {name!r}; there are {', '.join(runner_names())}")
    if len(announced) > 1:
        raise UserError(
            f"runner {name}: announced by {' and by '.join(map(announced_object, announced))}: uninstall one of them"
        )
    try:
        loaded: RunnerModule = announced[0].load()
    except (Exception, SystemExit) as error:  # another package's module may raise anything
        raise UserError(
            f"runner {name}: {announced_object(announced[0])} cannot be loaded ({in_one_line(error)})"
        ) from error
    if not (hasattr(loaded, "TAKES_ADDRESS") and hasattr(loaded, "open_runner")):
        raise UserError(f"runner {name}: {announced_object(announced[0])} should have TAKES_ADDRESS and open_runner")
    return loaded


@contextmanager
def open_runner(name: str, asked: RunnerRequest) -> Iterator[Runner]:
    """Open the runner of this name; raise UserError if a package that it needs is not installed."""
    with ExitStack() as stack:
        try:
            runner = stack.enter_context(load_runner(name).open_runner(asked))
        except ImportError as error:
            raise UserError(f"--runner {name} needs packages that are not installed: {error}") from error
        yield runner
