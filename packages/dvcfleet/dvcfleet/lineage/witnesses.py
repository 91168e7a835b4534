"""Who vouches for an entry of dvc.lock: a line of a ledger, git, or DVC's run cache for what `dvc repro` ran.

The run cache, to which `dvc commit` adds entries too, does not vouch for other bytes than a run of a ledger wrote from
the same inputs. It may be shared, and whoever writes to it can add entries: what a run restored from there is vouched
for by a ledger or by git alone.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, parse_lock_file, read_lock_file
from dvcfleet.dvc_adapter.protocols import PipelineStage, Repo
from dvcfleet.dvc_adapter.run_cache import has_runs, keeps_runs, run_key, runs_like, without_sizes
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, varying
from dvcfleet.git import git_if_any
from dvcfleet.lineage.findings import Finding, FindingKind
from dvcfleet.lineage.steps import Lineage, LineageStep
from dvcfleet.messages import Result
from dvcfleet.record.ledger import entry_digest

_CURE = "`run --force` with its name makes it again"
_RESTORED = f"a run restored it from DVC's run cache, and no ledger says who made it: copy theirs here, or {_CURE}"
_EDITED = f"no ledger has a line of what dvc.lock says it wrote, nor have DVC's run cache and git: edited; {_CURE}"
_OTHER = (
    f"no ledger has a line of what dvc.lock says it wrote, and a run wrote other bytes from the same inputs: it was "
    f"edited, or `dvc commit` or `dvc repro --force` wrote it; {_CURE}"
)
_COMMITS = 20  # of git that are asked for an entry
_EXPERIMENTS = 5  # the last ones, which are asked for other bytes from the same inputs


def check_witnesses(repo: Repo, lineage: Lineage, made: Collection[str], known: Collection[str]) -> Iterator[Finding]:
    """Find the stages whose entry in dvc.lock nobody vouches for.

    `made`: the digests of the entries that commands made according to a ledger. `known`: the stages that other findings
    concern, of which nothing more is said.
    """
    doubtful = [
        (lineage.stages[name], why)
        for name, step in lineage.steps.items()
        if name not in known and (why := _doubt(lineage, step, made))
    ]
    witnesses = _Witnesses(repo, made)
    for stage, why in doubtful:
        found = witnesses.check(stage, why) if in_dvc_yaml(stage) else None
        if found:
            yield Finding(FindingKind.UNPROVEN, stage.addressing, found, (stage.addressing,))


def without_line(lineage: Lineage) -> list[str]:
    """Return the stages with commands that ran outside this engine, as far as the ledgers know."""
    steps = [step for step in lineage.steps.values() if step.execution is None and step.renamed is None]
    return [step.stage for step in steps if lineage.stages[step.stage].cmd]


def _doubt(lineage: Lineage, step: LineageStep, made: Collection[str]) -> str | None:
    """Return what is wrong with a step if neither git nor the run cache vouches for it; None if a ledger does."""
    ran, stage = step.execution, lineage.stages[step.stage]
    if step.entry in made or not stage.cmd or stage.frozen:
        return None
    if ran:
        return _RESTORED if ran.result == Result.RESTORED and ran.unproven else None
    return _EDITED if any(one.entry for one in lineage.executions.get(step.stage, ())) else None


class _Witnesses:
    """Asks git and the run cache; what several stages need is read once."""

    def __init__(self, repo: Repo, made: Collection[str]) -> None:
        self._repo, self._made = repo, made
        self._entries: dict[tuple[str, str], Mapping[str, Any]] = {}

    def check(self, stage: PipelineStage, doubt: str) -> str | None:
        """Return what is wrong with a stage's entry; None if somebody vouches for it."""
        path = lock_file_of(stage)
        entry = self._read("", path)[stage.name]
        if doubt is _RESTORED:
            return None if self._in_git(path, stage, entry) else doubt
        with suppress(ValueError):  # of a value that the run cache does not take
            if keeps_runs(stage):
                return self._beside(stage, path, entry)
        return None

    def _beside(self, stage: PipelineStage, path: str, entry: Mapping[str, Any]) -> str | None:
        """Compare an entry without a line with others of the same command and inputs."""
        kept, varies = runs_like(stage, dict(entry)), varying(stage)
        wrote, key = _outs(self._repo, entry, varies), run_key(dict(entry))
        saved = [self._read(commit, path).get(stage.name) for commit in self._experiments]
        like = [*kept, *(each for each in saved if each and run_key(dict(each)) == key)]
        made = [each for each in like if entry_digest(each) in self._made]
        if any(_differ(wrote, _outs(self._repo, each, varies)) for each in made):
            return _OTHER
        if not has_runs(self._repo) or any(without_sizes(each) == without_sizes(dict(entry)) for each in kept):
            return None
        return None if self._in_git(path, stage, entry) else _EDITED

    @cached_property
    def _experiments(self) -> list[str]:
        """The commits of the last experiments."""
        asked = ("for-each-ref", "--sort=-committerdate", f"--count={_EXPERIMENTS}", "--format=%(objectname)")
        return (git_if_any(self._repo.root_dir, *asked, "refs/exps") or "").split()

    def _in_git(self, path: str, stage: PipelineStage, entry: Mapping[str, Any]) -> bool:
        """Tell whether a commit on a branch has the entry, but for sizes."""
        name, folder = stage.name, os.path.dirname(path)
        wanted = without_sizes(dict(entry))
        if without_sizes(dict(self._read("HEAD", path).get(name, {}))) == wanted:
            return True
        hashes = [out["md5"] for out in entry.get("outs", ()) if "md5" in out][:1]
        asked = ("log", f"-n{_COMMITS}", "--format=%H", "HEAD", "--branches", "--tags", "--remotes")
        listed = [git_if_any(folder, *asked, f"-S{md5}", "--", os.path.basename(path)) or "" for md5 in hashes]
        commits = " ".join(listed).split()
        return any(without_sizes(dict(self._read(each, path).get(name, {}))) == wanted for each in commits)

    def _read(self, commit: str, path: str) -> Mapping[str, Any]:
        """Return the entries of a dvc.lock, in the workspace or in a commit."""
        if (commit, path) not in self._entries:
            folder, name = os.path.split(path)
            text = git_if_any(folder, "show", f"{commit}:./{name}") if commit else None
            self._entries[commit, path] = parse_lock_file(text or "", name) if commit else read_lock_file(path)
        return self._entries[commit, path]


def _outs(repo: Repo, entry: Mapping[str, Any], varies: Mapping[str, bool | list[str]]) -> dict[str, Any]:
    """Return what an entry says was written: hashes, or the content of a JSON file but for the keys that vary."""
    found = {}
    for out in entry.get("outs", ()):
        path, md5, keys = out["path"], out.get("md5"), varies.get(out["path"])
        content = read_json(Path(repo.cache.local.oid_to_path(md5))) if md5 and isinstance(keys, list) else None
        if not keys:
            found[path] = md5
        elif isinstance(keys, list) and content is not None:
            found[path] = {key: value for key, value in content.items() if key not in keys}
    return found


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether an output that can be compared differs."""
    return any(one[path] != other[path] for path in one.keys() & other.keys())
