"""The flows of deployments: `merganser run` and `merganser gc` on a schedule. Imports Prefect: import this late."""

import io
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State
from rich.console import Console

from dvcfleet.errors import BusyError, NoRepositoryError, SkippedError, UserError
from dvcfleet.options import Options
from dvcfleet.process_settings import raise_gc_thresholds, reach_this_machine, set_own
from dvcfleet.repository import root_around
from dvcfleet.run import run as run_stages
from dvcfleet.run_names import RUN_NAME_VARIABLE
from merganser.errors import InputError
from merganser.flows.commands.gc import collect_garbage, lines_of, time_before
from merganser.flows.steps.answer import REPORT, WORSE, read_worse_scores
from merganser.plugins import trust_own_methods

WORSE_EVENT = "merganser.score.worse"
_LAST_LINES = 10


class LogLines(io.StringIO):
    """A text stream that turns lines into log lines of the flow run; `last` has the latest."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._logger = get_run_logger()
        self._open = ""

    def write(self, text: str) -> int:
        """Log complete lines; keep an unfinished one for later."""
        *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            self._logger.info(line)
            self.last.append(line)
        return len(text)


@flow(name="merganser", persist_result=False)
def scheduled(
    stages: list[str] | None = None,
    runner: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    profile: str | None = None,
    fetch_results: bool = False,
    force: bool = False,
    busy: Literal["refuse", "wait", "skip"] = "wait",
    prune: bool = False,
    save_experiment: bool = False,
    repo: Path = Path(),
) -> State[Any]:
    """Run every stale stage, with the options of `merganser run`.

    The flow run fails if a stage failed, with the summary as its message. If `busy` is `skip` and another run is
    active, it completes with the name "Skipped". Each score that fell by more than the sampling error becomes an
    event.
    """
    if RUN_NAME_VARIABLE not in os.environ:
        set_own(RUN_NAME_VARIABLE, flow_run.name or "")
    raise_gc_thresholds()
    reach_this_machine()
    trust_own_methods()
    lines, before = LogLines(), _version(repo)
    console = Console(file=lines, highlight=False, soft_wrap=True)
    try:
        code = run_stages(
            Options(
                tuple(stages or ()),
                force=force,
                prune=prune,
                fetch_results=fetch_results,
                save_experiment=save_experiment,
            ),
            repo=repo,
            runner=runner,
            address=address,
            workers=workers,
            profile=profile,
            busy=busy,
            console=console,
        )
    except SkippedError as skipped:
        return Completed(name="Skipped", message=str(skipped))
    except (UserError, InputError) as error:
        return Failed(message=str(error))
    if _version(repo) not in (None, before):
        for row in read_worse_scores(root_around(repo)):
            tell_worse(row)
    return Failed(message="\n".join(lines.last)) if code else Completed(message=lines.last[-1])


@flow(name="merganser-gc", persist_result=False)
def free(keep: str = "30d", keep_best: bool = True, repo: Path = Path()) -> State[Any]:
    """Delete leftovers of old runs that no kept result needs, as `merganser gc --yes` does; skipped during a run."""
    try:
        freed = collect_garbage(repo, time_before(keep), keep_best, do=True)
    except BusyError as busy:
        return Completed(name="Skipped", message=str(busy))
    except (UserError, InputError) as error:
        return Failed(message=str(error))
    return Completed(message="\n".join(lines_of(freed)))


def tell_worse(row: Mapping[str, str]) -> None:
    """Raise an event for a score that fell by more than the sampling error, so that automations can react."""
    numbers = {name: float(row[name]) for name in ("before", "after", "p")}
    name = f"{row['entry']}/{row['column']}"
    emit_event(
        WORSE_EVENT,
        resource={"prefect.resource.id": f"merganser.score.{name}", "prefect.resource.name": name},
        payload={"entry": row["entry"], "column": row["column"], **numbers},
    )


def _version(repo: Path) -> int | None:
    """Return when the report's list of fallen scores was written; None without a list or a repository."""
    with suppress(NoRepositoryError, FileNotFoundError):
        return (root_around(repo) / REPORT / WORSE).stat().st_mtime_ns
    return None
