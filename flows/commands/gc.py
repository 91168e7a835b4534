"""`merganser gc`: delete leftovers of old runs that no kept result needs; without `--yes`, list them."""

import base64
import gzip
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, chdir, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.lockfiles import names_by_lock_file, read_lock_file
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.unused import (
    dvc_cache_folder,
    hashes_of,
    recorded_at,
    unused_objects,
    unused_runs,
    used_hashes,
)
from dvcfleet.errors import UserError, some
from dvcfleet.git import GitError, git, git_if_any
from dvcfleet.prefect_adapter import database
from dvcfleet.record.environments import CHANGES, ENVIRONMENTS
from dvcfleet.record.ledger import (
    LEDGER,
    entry_digest,
    executions,
    move_older,
    older_lines,
    other_ledgers,
    sound_lines,
)
from dvcfleet.repository import STATE_FOLDER, opened, refuse_unfinished, state_folder, write_lock
from dvcfleet.worker.output import LOGS, log_path
from merganser.errors import MALFORMED, InputError
from merganser.flows.commands.mlflow_gc import delete_runs, old_runs, store_here
from merganser.flows.evidence.kept_runs import SavedRun, experiments, split_runs
from merganser.flows.evidence.runs.history import read_history
from merganser.flows.evidence.signing import SIGNATURES, read_signature
from merganser.flows.repositories.identity import (
    LIST,
    cache_folder,
    folders_sharing_cache,
    history_of,
    lost_sharers,
    own_identities,
)
from merganser.flows.suites.kept_lock_files import FOLDER
from merganser.hashes import sha256_of
from merganser.limits import parse_json
from merganser.tasks.stages import RECORDS

Entry = Mapping[str, Any]  # of a dvc.lock


@dataclass(frozen=True)
class FreeablePart:
    """One kind of leftovers: a description with the amount, its bytes, and `do`, which deletes it."""

    kind: str
    what: str
    size: int
    do: Callable[[], object]


class Garbage:
    """Leftovers in an opened repository, and in those that share its cache; all of them are locked."""

    def __init__(self, repo: Repo, others: list[Repo], since: datetime, best: bool) -> None:
        self._repo, self._others, self._since = repo, others, since
        self._root, self._state = Path(repo.root_dir), state_folder(repo)
        self._stay, self._go = split_runs(self._root, since, best, repo.cache.local.oid_to_path)
        # A worktree has the commits of the others of its git repository.
        with_git = [*(each for each in others if under_git(each)), repo]
        self._with_commits = list({history_of(Path(each.root_dir)): each for each in with_git}.values())
        self._old_lock_files = [path for path in _lock_files(self._state) if _is_older(path, since)]
        self._entries = list(self._kept_entries())
        self.left: list[str] = []

    def parts(self) -> Iterator[FreeablePart]:
        """Return each kind in the order of deletion: references go before the data that they name."""
        runs = f"{_counted(len(self._go), 'run')} of {_dates(self._go)}" if self._go else ""
        yield FreeablePart("experiments", runs, 0, partial(_forget, self._root, self._go))
        own = own_identities(self._root)
        if others := [run for run in experiments(self._root) if run.identity not in own]:
            self.left.append(f"experiments: {_counted(len(others), 'run')} of other comparisons in this git repository")
        yield _files("comparisons that were in use", "comparison", self._old_lock_files)
        yield from self._data()
        yield from self._mlflow()
        home = self._state / "prefect"
        old, every = database.count_old(home, self._since)
        size = (home / database.DATABASE).stat().st_size * old // every if old else 0
        yield FreeablePart("Prefect", _counted(old, "flow run"), size, partial(database.delete_old, home, self._since))
        yield from self._records()
        yield _files("logs", "log", self._old_logs())

    def _data(self) -> Iterator[FreeablePart]:
        cache = dvc_cache_folder(self._repo)
        known = [self._root, *(Path(other.root_dir) for other in self._others)]
        if not any(cache.is_relative_to(folder) for folder in known):
            self.left.append(f"DVC's cache: {cache} lies outside, and others may use it; see `dvc gc --projects`")
            return
        if gone := list(map(str, lost_sharers(self._repo))):
            where = cache_folder(self._repo) / LIST
            self.left.append(
                f"DVC's cache: {some(gone)} shares it, and is not there; if it was removed, strike it from {where}"
            )
            return
        used = {each for repo in (self._repo, *self._others) for each in self._used(repo)}
        used |= set(hashes_of(self._repo, self._entries))
        objects = unused_objects(self._repo, used)
        yield _files("DVC's cache", "file", objects)
        runs = unused_runs(self._repo, objects, self._entries, self._since)
        yield _files("run cache", "entry", runs, "entries")

    def _mlflow(self) -> Iterator[FreeablePart]:
        store = store_here()
        if store is None:
            if RECORDS.is_dir():
                self.left.append("MLflow: its store is a server's, another comparison's, or gone")
            return
        runs = old_runs(store, self._since, {*self._receipts(), *(run.name for run in self._stay)})
        yield FreeablePart("MLflow", _counted(len(runs.ids), "run"), runs.size, partial(delete_runs, runs))

    def _receipts(self) -> Iterator[str]:
        """Return the MLflow runs in the receipts of kept results."""
        for path in RECORDS.glob("*.json"):
            yield from _named(path)
        outs = (out for entry in self._entries for out in entry.get("outs", ()))
        for md5 in {out["md5"] for out in outs if Path(out["path"]).parent == RECORDS and out.get("md5")}:
            yield from _named(Path(self._repo.cache.local.oid_to_path(md5)))

    def _records(self) -> Iterator[FreeablePart]:
        """Find old records of the ledger and its files; those that a signature covers stay."""
        signed = _signed(self._root)
        lines = older_lines(self._state, self._since)
        ledger = (self._state / LEDGER).relative_to(self._root).as_posix()
        if ledger in signed and lines:
            self.left.append(
                f"ledger: {SIGNATURES} is about it as it is; after the next run use gc first, and sign then"
            )
            lines = []
        text = b"".join(line + b"\n" for line in lines)
        size = len(text) - len(gzip.compress(text)) if lines else 0
        what = f"{_counted(len(lines), 'line')} compressed" if lines else ""
        environments, changes = self._named_by_lines(set(lines))
        beside = [path for path in (self._state / ENVIRONMENTS).glob("*.json") if path.stem not in environments]
        beside += [path for path in (self._state / CHANGES).glob("*.patch") if path.stem not in changes]
        gone = [path for path in beside if path.relative_to(self._root).as_posix() not in signed]
        yield FreeablePart("ledger", what, size, partial(move_older, self._state, lines))
        yield _files("environments and patches", "file", gone)

    def _named_by_lines(self, moved: Collection[bytes]) -> tuple[set[str], set[str]]:
        """Return the environments and patches of lines that stay, and of those that made a kept result."""
        entries = {entry_digest(entry) for entry in self._entries}
        files = [self._state / LEDGER, *other_ledgers(self._state)]
        kept = [execution for path in files for line, execution in sound_lines(path) if line not in moved]
        made = {(each.entry, each.result): each for each in executions(self._state)}  # by their last execution
        kept += [execution for (entry, _), execution in made.items() if entry in entries]
        return {each.environment for each in kept}, {each.changes for each in kept if each.changes}

    def _old_logs(self) -> list[Path]:
        """List the logs and tracebacks of stages that no longer exist."""
        now = {log_path(self._root, stage.addressing) for stage in self._repo.index.stages}
        logs = [path for path in (self._root / LOGS).glob("*.log") if path not in now]
        return [path for path in (*logs, *(self._state / "failures").glob("*")) if _is_older(path, self._since)]

    def _kept_entries(self) -> Iterator[Entry]:
        """Yield the dvc.lock entries of all workspaces, and of commits and runs that stay."""
        for repo in (self._repo, *self._others):
            with chdir(repo.root_dir):
                own = [Path(path) for path in names_by_lock_file(repo.index.stages)]
            for path in (*own, *_lock_files(Path(repo.root_dir, STATE_FOLDER))):
                if path not in self._old_lock_files:
                    yield from read_lock_file(path).values()
        for repo in self._with_commits:
            for commit in self._kept_commits(repo):
                yield from recorded_at(Path(repo.root_dir), commit)

    def _kept_commits(self, repo: Repo) -> list[str]:
        """Return the commits of a git repository that stay: HEAD, branches, tags, and the experiments that stay.

        Without a commit on its branch, HEAD is left out. Raises UserError if git cannot list the others.
        """
        root = Path(repo.root_dir)
        heads = git_if_any(root, "rev-list", "--no-walk", "--branches", "--tags")
        if heads is None and under_git(repo):
            raise UserError(
                f"{root}: `git rev-list --branches --tags` fails, and gc keeps what they name; mend it first"
            )
        head = git_if_any(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") or ""
        stay = {run.commit for run in experiments(root)} - {run.commit for run in self._go}
        return list(dict.fromkeys([*head.split(), *(heads or "").split(), *sorted(stay)]))

    def _used(self, repo: Repo) -> set[str]:
        """Return the hashes that a comparison uses: in its workspace, branches and tags, and in its own experiments."""
        with chdir(repo.root_dir):
            commits = self._kept_commits(repo) if repo in self._with_commits else None
            used, unreadable = used_hashes(repo, commits)
        self.left += [
            f"DVC's cache: what dvc.lock names in {commit[:8]} of {repo.root_dir}, whose dvc.yaml DVC cannot read"
            for commit in unreadable
        ]
        return used


def _lock_files(state: Path) -> list[Path]:
    """List the kept dvc.lock files of comparisons that were in use in a repository before."""
    return sorted((state / FOLDER).glob("*.lock"))


def _is_older(path: Path, since: datetime) -> bool:
    return path.is_file() and path.stat().st_mtime < since.timestamp()


def _dates(runs: Iterable[SavedRun]) -> str:
    days = sorted({f"{run.saved:%Y-%m-%d}" for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _forget(root: Path, runs: Iterable[SavedRun]) -> None:
    """Remove the experiments as `dvc exp remove` does; git frees their commits two weeks later."""
    git(root, "update-ref", "--stdin", given="".join(f"delete {run.ref} {run.commit}\n" for run in runs))
    git_if_any(root, "gc", "--quiet")


def _files(kind: str, one: str, paths: Collection[Path], many: str = "") -> FreeablePart:
    size = sum(path.stat().st_size for path in paths)
    return FreeablePart(kind, _counted(len(paths), one, many), size, partial(_remove, paths))


def _counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun; empty for none."""
    return f"{count} {one if count == 1 else many or one + 's'}" if count else ""


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _named(receipt: Path) -> Iterator[str]:
    run = (read_json(receipt) or {}).get("run_id")
    if isinstance(run, str):
        yield run


def _signed(root: Path) -> set[str]:
    """Return the files that a signed statement covers and that have not changed since."""
    unchanged: set[str] = set()
    for path in (root / SIGNATURES).rglob("*.intoto.json"):
        with suppress(*MALFORMED):
            statement = parse_json(base64.b64decode(read_signature(path)["payload"]))
            noted = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
            there = ((root / name, name, digest) for name, digest in noted.items())
            unchanged |= {name for path, name, digest in there if path.is_file() and sha256_of(path) == digest}
    return unchanged


_TIME = re.compile(r"(\d+)([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


@dataclass(frozen=True)
class Freed:
    """The deleted leftovers, or those to delete; `left`: what is left alone, and why. As JSON its keys are stable."""

    parts: tuple[FreeablePart, ...]
    left: tuple[str, ...]
    done: bool

    def as_json(self) -> dict[str, Any]:
        """Return it with the stable keys."""
        parts = [{key: value for key, value in vars(part).items() if key != "do"} for part in self.parts]
        return {"parts": parts, "size": sum(part.size for part in self.parts), "left": self.left, "done": self.done}


def time_before(text: str) -> timedelta:
    """Read an age such as `30d`; raise InputError for another form, and for one before the year 1."""
    match = _TIME.fullmatch(text)
    if not match or not int(match[1]):
        raise InputError(f"--keep: expected hours, days or weeks, such as 12h, 30d or 8w, got {text!r}")
    try:
        age = timedelta(hours=int(match[1]) * _HOURS[match[2]])
        datetime.now(UTC) - age
    except OverflowError as error:
        raise InputError(f"--keep: {text} is before the year 1; give a shorter time") from error
    return age


def collect_garbage(repo: Path, keep: timedelta, best: bool, do: bool) -> Freed:
    """Find leftovers of runs older than the given age that nothing kept needs; delete them if told to.

    Raises BusyError while a run is at work here, or in a comparison that shares DVC's cache; UserError if a killed
    run has not been resumed, or if DVC cannot read the results to keep.
    """
    since = datetime.now(UTC) - keep
    with ExitStack() as stack:
        dvc_repo = stack.enter_context(opened(repo))
        root = Path(dvc_repo.root_dir)
        stack.enter_context(write_lock(dvc_repo))
        others = [stack.enter_context(opened(folder)) for folder in folders_sharing_cache(dvc_repo)]
        for other in others:
            stack.enter_context(write_lock(other))
        stack.enter_context(chdir(root))
        for repository in (dvc_repo, *others):
            refuse_unfinished(repository)
        _ask_git(dvc_repo)
        garbage = Garbage(dvc_repo, others, since, best)
        parts = tuple(part for part in garbage.parts() if part.size or part.what)
        if do:
            read_history(root)  # which keeps the points of the runs that go
            for part in parts:
                part.do()
    return Freed(parts, tuple(garbage.left), do)


def _ask_git(repo: Repo) -> None:
    """Refuse a repository if git does not answer: all data of its branches and experiments would look unused."""
    try:
        if under_git(repo):
            git(repo.root_dir, "for-each-ref", "--count=1")
    except GitError as error:
        raise UserError(
            f"{repo.root_dir}: git fails ({error}), so the files that runs and branches need are unknown"
        ) from error


def lines_of(freed: Freed) -> Iterator[str]:
    """Return lines for the terminal: how much is deleted of each kind."""
    rows = [(part.kind, part.what, decimal(part.size) if part.size else "") for part in freed.parts]
    width = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for kind, what, size in rows:
        yield f"{kind:{width[0]}}  {what:{width[1]}}  {size:>9}".rstrip()
    for line in freed.left:
        yield f"left alone: {line}"
    total = decimal(sum(part.size for part in freed.parts))
    if not freed.parts:
        yield "nothing to free: every file is kept, or needed by kept results"
    else:
        yield f"freed: {total}" if freed.done else f"nothing was freed yet; --yes frees {total}"
