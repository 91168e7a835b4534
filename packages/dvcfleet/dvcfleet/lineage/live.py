"""Send OpenLineage events during a run, by its client's settings, in the background; a failure is reported once."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.errors import in_one_line
from dvcfleet.lineage.tree import repository_of, step_of
from dvcfleet.record.environments import current_commit, read_environment
from dvcfleet.record.ledger import Execution
from dvcfleet.repository import state_folder
from dvcfleet.terminal.secrets import masked

_VARIABLES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_OWN_VARIABLES = "OPENLINEAGE__"  # what the names of the client's other variables begin with
_FILE = "openlineage.yml"
_LAST_S = 5.0  # for what is not sent yet when a run ends, unless nothing arrives


class Events:
    """Reports a run's stages during the run; this base class does nothing."""

    def began(self, stage: Stage) -> None:
        """Report that a stage started."""

    def ended(self, stage: Stage, execution: Execution, entry: Mapping[str, Any] | None) -> None:
        """Report how a stage ended, with its dvc.lock entry."""

    def stopped(self, stage: Stage) -> None:
        """Report that a stage was stopped."""


@contextmanager
def open_events(
    repo: Repo, run: str, flow_run: Callable[[], str | None], say: Callable[[str], object]
) -> Iterator[Events]:
    """Yield an object that reports a run's stages; `flow_run` returns the id of Prefect's flow run.

    Events go to OPENLINEAGE_URL, or to the endpoint in the client's other variables or `openlineage.yml`; without
    these, nowhere.
    """
    emit = _emitter(say) if _is_wanted(Path(repo.root_dir)) else None
    if emit is None:
        yield Events()
        return
    for name in ("openlineage", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # each try of theirs is a warning
    sender = _Sender(emit, say)
    try:
        yield _Live(repo, run, flow_run, sender)
    finally:
        sender.close()


def _emitter(say: Callable[[str], object]) -> Callable[[Any], object] | None:
    """Return a function that sends an event by the client's settings; None, with a message, if they are invalid."""
    before = dict(os.environ)
    try:
        from openlineage.client import OpenLineageClient

        return OpenLineageClient().emit
    except Exception as error:  # whatever its settings are: they are no reason not to run
        say(masked(f"OpenLineage: no events are sent, as its client refuses its settings: {in_one_line(error)}"))
        return None
    finally:  # the client copies its variables to others, which are no matter of the stages
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


def _is_wanted(root: Path) -> bool:
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    names = [name for name, value in os.environ.items() if value and name.startswith(_OWN_VARIABLES)]
    return bool(names) or any(map(os.environ.get, _VARIABLES)) or (root / _FILE).is_file()


class _Live(Events):
    """Reports a run's stages as OpenLineage events."""

    def __init__(self, repo: Repo, run: str, flow_run: Callable[[], str | None], sender: "_Sender") -> None:
        self._folder = state_folder(repo)
        self._run, self._flow_run, self._sender = run, flow_run, sender
        self._repository, self._commit = repository_of(self._folder.parent), current_commit(self._folder.parent)[0]
        self._began: set[str] = set()

    def began(self, stage: Stage) -> None:
        if stage.addressing not in self._began:
            self._began.add(stage.addressing)
            self._sender.send(self._started, stage, None, _now())

    def ended(self, stage: Stage, execution: Execution, entry: Mapping[str, Any] | None) -> None:
        if stage.addressing not in self._began:
            self._sender.send(self._started, stage, entry, execution.began)
        self._sender.send(self._ended, stage, entry, execution)

    def stopped(self, stage: Stage) -> None:
        if stage.addressing in self._began:
            self._sender.send(self._stopped, stage, _now())

    def _started(self, stage: Stage, entry: Mapping[str, Any] | None, when: str) -> Any:
        from dvcfleet.lineage.openlineage import started

        step, about = step_of(stage, entry), self._about(stage, when)
        return started(stage.addressing, step, about, when, self._repository, self._commit)

    def _ended(self, stage: Stage, entry: Mapping[str, Any] | None, one: Execution) -> Any:
        from dvcfleet.lineage.openlineage import ended

        environment = read_environment(self._folder, one.environment) or {}
        step, about = step_of(stage, entry), self._about(stage, one.began)
        return ended(stage.addressing, step, about, one, environment, self._repository)

    def _stopped(self, stage: Stage, when: str) -> Any:
        from dvcfleet.lineage.openlineage import stopped

        return stopped(stage.addressing, self._about(stage, when), when)

    def _about(self, stage: Stage, began: str) -> Any:
        from dvcfleet.lineage.openlineage import openlineage_run

        return openlineage_run(stage.addressing, self._run, self._flow_run(), began)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Sender:
    """Sends events one after another in a thread of its own; reports one failure, once."""

    def __init__(self, emit: Callable[[Any], object], say: Callable[[str], object]) -> None:
        self._emit, self._say = emit, say
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._lost = ""  # why the last event did not arrive; empty if it did
        self._is_said = False
        self._thread = Thread(target=self._work, name="OpenLineage", daemon=True)
        self._thread.start()

    def send(self, make: Callable[..., Any], *args: Any) -> None:
        """Create an event now, and send it after earlier ones."""
        try:
            self._events.put(make(*args))
        except Exception as error:  # whatever is wrong with what is told: the run goes on
            self._tell(in_one_line(error))

    def close(self) -> None:
        """Wait a moment for unsent events, unless nothing arrives."""
        self._events.put(None)
        self._thread.join(0 if self._lost else _LAST_S)
        if self._thread.is_alive():
            self._tell(self._lost or "not all were taken in time")

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._emit(event)
                self._lost = ""
            except Exception as error:  # whatever the client or the endpoint does: the run goes on
                self._lost = in_one_line(error)
                self._tell(self._lost)

    def _tell(self, why: str) -> None:
        if not self._is_said:
            self._is_said = True
            more = "the run goes on without them, and `lineage export FILE.jsonl` writes them afterwards"
            self._say(masked(f"OpenLineage's events do not arrive ({why}): {more}"))
