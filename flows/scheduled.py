"""The flow of all deployments: `merganser run` in the current folder, when due. Imports Prefect: import it late."""

import io
import os
from collections import deque
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State
from rich.console import Console

from flows.compare import compare
from flows.garbage import few_collections
from flows.repository import SkippedError
from flows.run_names import RUN_NAME_VARIABLE
from merganser.errors import InputError

_LAST_LINES = 10


class LogLines(io.StringIO):
    """A text stream whose lines become log lines of the flow run; `last` holds the latest."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._logger = get_run_logger()
        self._open = ""

    def write(self, text: str) -> int:
        """Log the lines that the text ends; keep the rest until its end comes."""
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
    pull: bool = False,
    force: bool = False,
    busy: str = "wait",
    repo: Path = Path(),
) -> State[Any]:
    """Run every stage that is not up to date, with the parameters of `merganser run`.

    The flow run fails where a stage did, with the summary as its message. One that is skipped since another run is at
    work, as `busy` says, ends well and is named so.
    """
    os.environ.setdefault(RUN_NAME_VARIABLE, flow_run.name)
    lines = LogLines()
    console = Console(file=lines, highlight=False, soft_wrap=True)
    try:
        with few_collections():
            code = compare(
                tuple(stages or ()),
                repo=repo,
                runner=runner,
                address=address,
                workers=workers,
                profile=profile,
                pull=pull,
                force=force,
                busy=busy,
                console=console,
            )
    except SkippedError as skipped:
        return Completed(name="Skipped", message=str(skipped))
    except InputError as error:
        return Failed(message=str(error))
    return Failed(message="\n".join(lines.last)) if code else Completed(message=lines.last[-1])
