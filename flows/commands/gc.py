"""`merganser gc`: free what runs left and no kept result needs; without `--yes` say what that would be."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError
from dvcfleet.git import GitError, git
from dvcfleet.repository import opened, refuse_unfinished, write_lock
from merganser.errors import InputError
from merganser.flows.commands.garbage import FreeablePart, Garbage
from merganser.flows.evidence.runs.history import read_history
from merganser.flows.repositories.shared_caches import TRIALS, comparisons_sharing_cache

_TIME = re.compile(r"(\d+)([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


@dataclass(frozen=True)
class Freed:
    """What is freed, or would be; `left`: what is left alone, and why. Its keys are stable as JSON."""

    parts: tuple[FreeablePart, ...]
    left: tuple[str, ...]
    done: bool

    def as_json(self) -> dict[str, Any]:
        """Return it with the stable keys."""
        parts = [{key: value for key, value in vars(part).items() if key != "do"} for part in self.parts]
        return {"parts": parts, "size": sum(part.size for part in self.parts), "left": self.left, "done": self.done}


def time_before(text: str) -> timedelta:
    """Read how long something is kept, such as `30d`; raise InputError for another form."""
    found = _TIME.fullmatch(text)
    if not found or not int(found[1]):
        raise InputError(f"--keep: expected hours, days or weeks, such as 12h, 30d or 8w, got {text!r}")
    return timedelta(hours=int(found[1]) * _HOURS[found[2]])


def collect_garbage(repo: Path, keep: timedelta, best: bool, do: bool) -> Freed:
    """Find what runs left before the time that is kept and nothing kept needs; free it if told to.

    Raises BusyError while a run is at work here, or in a comparison that shares DVC's cache; UserError if a run was
    killed and has not been continued, or DVC cannot read what it is to keep.
    """
    since = datetime.now(UTC) - keep
    with ExitStack() as stack:
        dvc_repo = stack.enter_context(opened(repo))
        root = Path(dvc_repo.root_dir)
        stack.enter_context(write_lock(dvc_repo))
        others = [stack.enter_context(opened(folder)) for folder in _beside(dvc_repo)]
        for other in others:
            stack.enter_context(write_lock(other))
        stack.enter_context(chdir(root))
        for each in (dvc_repo, *others):
            refuse_unfinished(each)
        _ask_git(dvc_repo)
        found = Garbage(dvc_repo, others, since, best)
        parts = tuple(part for part in found.parts() if part.size or part.what)
        if do:
            read_history(root)  # which keeps the points of the runs that go
            for part in parts:
                part.do()
    return Freed(parts, tuple(found.left), do)


def _beside(repo: Repo) -> list[Path]:
    """List the other folders whose results are in the same cache: comparisons, and the trials of all."""
    others = comparisons_sharing_cache(repo)
    folders = [Path(repo.root_dir), *others]
    return [*others, *(path.parent for folder in folders for path in sorted((folder / TRIALS).glob("*/.dvc")))]


def _ask_git(repo: Repo) -> None:
    """Refuse a repository whose git does not answer: what its branches and experiments need would seem unused."""
    try:
        if under_git(repo):
            git(repo.root_dir, "for-each-ref", "--count=1")
    except GitError as error:
        raise UserError(f"{repo.root_dir}: git refuses ({error}), and knows what runs and branches need") from error


def lines_of(found: Freed) -> Iterator[str]:
    """Say in the terminal what is freed, by kind."""
    rows = [(part.kind, part.what, decimal(part.size) if part.size else "") for part in found.parts]
    width = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for kind, what, size in rows:
        yield f"{kind:{width[0]}}  {what:{width[1]}}  {size:>9}".rstrip()
    for line in found.left:
        yield f"left alone: {line}"
    total = decimal(sum(part.size for part in found.parts))
    if not found.parts:
        yield "nothing to free: all is kept, or needed by what is kept"
    else:
        yield f"freed: {total}" if found.done else f"nothing was freed yet; --yes frees {total}"
