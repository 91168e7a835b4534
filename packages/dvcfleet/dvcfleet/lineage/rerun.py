"""Run stages again in a scratch copy that shares nothing with the repository; compare bytes, or metrics' numbers."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dvcfleet.disk import from_root, is_at_or_in
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, read_lock_file
from dvcfleet.dvc_adapter.objects import cached_listing, listing_at
from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage
from dvcfleet.dvc_adapter.stages import is_metric, set_params, varies
from dvcfleet.errors import UserError, some
from dvcfleet.git import git_if_any
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.hooks import hooks_of
from dvcfleet.lineage.steps import Finding, FindingKind, Lineage
from dvcfleet.lineage.tree import recorded_entry
from dvcfleet.run_names import RUN_NAME_VARIABLE

KeyPath = tuple[str, ...]
# How far the value under some keys of the recorded content may be from its other version; None if it is not compared.
Tolerance = Callable[[Any, KeyPath], float | None]


def differences(before: Path, after: Path, tolerance: Tolerance) -> Iterator[str]:
    """Return where two metric files differ: JSON numbers by more than the tolerance, everything else at all."""
    recorded = _read(before)
    yield from _differences(recorded, _read(after), (), lambda keys: tolerance(recorded, keys))


def _differences(one: Any, other: Any, keys: KeyPath, allowed: Callable[[KeyPath], float | None]) -> Iterator[str]:
    pair = _parts(one), _parts(other)
    if pair[0] is not None and pair[1] is not None and pair[0].keys() == pair[1].keys():
        for name, value in pair[0].items():
            yield from _differences(value, pair[1][name], (*keys, name), allowed)
        return
    most = allowed(keys)
    if most is None or one == other:
        return
    where = ".".join(keys) or "all of it"
    if not (_is_number(one) and _is_number(other)):
        yield f"{where}: {_shown(one)} was recorded, {_shown(other)} written when run again"
    elif not (abs(one - other) <= most or (math.isnan(one) and math.isnan(other))):
        yield f"{where}: {one} was recorded, {other} written when run again, further apart than {most:.2g}"


def _parts(value: Any) -> dict[str, Any] | None:
    if isinstance(value, list):
        return {str(number): each for number, each in enumerate(value)}
    return value if isinstance(value, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(path: Path) -> Any:
    """Read JSON; a file in another format is a single text."""
    content = path.read_bytes()
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _shown(value: Any, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}..."


# Variables that lead a run elsewhere; they are unset, as are those that the project names, so that all is in the copy.
_ELSEWHERE = ("PREFECT_API_URL", RUN_NAME_VARIABLE)


@dataclass(frozen=True)
class Rerun:
    """How stages run again: by a profile, and with other values of parameters.

    `params`: by the dotted name in params.yaml, the value that is declared and the one for the rerun.
    """

    profile: str | None = None
    params: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


class RerunError(UserError):
    """The scratch copy cannot run."""


def run_again(repo: Repo, lineage: Lineage, names: Sequence[str], how: Rerun) -> list[Finding]:
    """Run the named stages and all upstream stages in a scratch copy; return the outputs that differ.

    With other parameters, the metrics of stages with other inputs than recorded are compared within the project's
    tolerances, instead of the bytes of all outputs. Outputs whose `meta` says `dvcfleet: {varies: true}`, or the
    keys of theirs that it lists, such as times, are not compared. The copy is made in TMPDIR and removed. Raises
    RerunError if it cannot run.
    """
    stages = [lineage.stages[name] for name in lineage.steps]
    for out in (out for stage in stages if _runs(stage) for out in stage.outs if not out.is_in_repo):
        raise RerunError(
            f"{out.stage.addressing}: writes {out}, outside the repository, over which a rerun would write"
        )
    with TemporaryDirectory(prefix="dvcfleet-again-") as folder:
        # As deep as the repository, for sources beside it; the same folder within, as stage names are relative to it.
        scratch = Path(folder, "copy", *Path(repo.root_dir).parts[1:])
        _make_copy(repo, scratch)
        if how.params:
            set_params(scratch / "params.yaml", {name: value for name, (_, value) in how.params.items()})
        here = Path(scratch, os.path.relpath(os.getcwd(), repo.root_dir))
        elsewhere = {*_ELSEWHERE, *hooks_of(Path(repo.root_dir)).elsewhere}
        environment = {name: value for name, value in os.environ.items() if name not in elsewhere}
        options = [f"--profile={how.profile}"] if how.profile else []
        command = [sys.executable, "-m", "dvcfleet", "run", *options, "--", *names]
        done = subprocess.run(
            command, cwd=here, env=environment, encoding="utf-8", errors="replace", capture_output=True, check=False
        )
        if done.returncode == 2:
            raise RerunError(f"a copy of this repository cannot be run: {(done.stdout + done.stderr).strip()}")
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
        return [one for stage in stages if _runs(stage) for one in _compare(repo, stage, scratch, how)]


def _runs(stage: Stage) -> bool:
    return bool(stage.cmd) and not stage.frozen


def _make_copy(repo: Repo, scratch: Path) -> None:
    """Copy code, parameters and sources, but no stage's outputs; the copy has its own DVC cache."""
    root = Path(repo.root_dir)
    for name in _sources(repo):
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target, follow_symlinks=os.path.isfile(root / name))
    for dep in (dep for stage in repo.index.stages for dep in stage.deps):
        link = Path(os.path.normpath(scratch / path_from_root(dep)))
        if dep.protocol == "local" and path_from_root(dep).startswith("../") and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(dep.fs_path)
    (scratch / ".dvc/tmp").mkdir(parents=True)
    has_git = under_git(repo)
    types = ", ".join(repo.config["cache"].get("type") or ["reflink", "copy"])
    config = (
        f"[core]\n    analytics = false\n    no_scm = {not has_git}\n[cache]\n    dir = cache\n    type = {types}\n"
    )
    (scratch / ".dvc/config").write_text(config, encoding="utf-8")
    (scratch / ".dvc/.gitignore").write_text("/tmp\n/cache\n", encoding="utf-8")
    if has_git:
        git_if_any(scratch, "init", "-q")


def _sources(repo: Repo) -> Iterator[str]:
    """List every file that no stage writes: files that git tracks or would track, and other inputs of stages."""
    root = repo.root_dir
    made = [path_from_root(out) for stage in repo.index.stages if _runs(stage) for out in stage.outs]
    given = [out for stage in repo.index.stages if not _runs(stage) for out in stage.outs]
    read = [dep for stage in repo.index.stages for dep in stage.deps]
    listed = git_if_any(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = _below(repo, root) if listed is None else set(listed.split("\0"))
    for item in (*given, *read):
        if item.protocol == "local" and item.is_in_repo:
            names |= {path_from_root(item)} if os.path.isfile(item.fs_path) else _below(repo, item.fs_path)
    lock_files = {os.path.relpath(lock_file_of(stage), root) for stage in repo.index.stages}
    for name in sorted(names - lock_files):
        hidden = name.startswith((".dvc/", ".git/", ".dvcfleet/"))
        if (
            (os.path.isfile(os.path.join(root, name)) or _is_link_within(root, name))
            and not hidden
            and not any(is_at_or_in(name, folder) for folder in made)
        ):
            yield name


def _is_link_within(root: str, name: str) -> bool:
    """Tell whether a name is a relative link to a folder of the same repository, which a copy also has."""
    path = os.path.join(root, name)
    is_relative = os.path.islink(path) and not os.path.isabs(os.readlink(path))
    return is_relative and os.path.isdir(path) and is_at_or_in(os.path.realpath(path), os.path.realpath(root))


def _below(repo: Repo, folder: str) -> set[str]:
    files = repo.dvcignore.find(repo.fs, folder) if os.path.isdir(folder) else ()
    return {from_root(repo.root_dir, file) for file in files}


def _compare(repo: Repo, stage: Stage, scratch: Path, how: Rerun) -> Iterator[Finding]:
    lock_file = scratch / os.path.relpath(lock_file_of(stage), repo.root_dir)
    entry = recorded_entry(stage, {lock_file_of(stage): read_lock_file(lock_file)})
    if entry is None:
        message = "did not finish when it was run again"
        yield Finding(FindingKind.NOT_REPRODUCED, stage.addressing, message, (stage.addressing,))
        return
    before = recorded_entry(stage, {lock_file_of(stage): read_lock_file(lock_file_of(stage))}) or {}
    outs = [out for out in stage.outs if out.hash_info and varies(out) is not True]
    if how.params and _inputs(entry) != _inputs(before):
        changed = ", ".join(f"{key} {value} instead of {declared}" for key, (declared, value) in how.params.items())
        tolerance = hooks_of(Path(repo.root_dir)).tolerance
        for out in filter(is_metric, outs):
            yield from _compare_json(out, scratch, partial(tolerance, path_from_root(out)), f" ({changed})")
        return
    again = {out["path"]: out.get("md5") for out in entry.get("outs", ())}
    for out in outs:
        value, keys = again.get(out.def_path), varies(out)
        if value == out.hash_info.value:
            continue
        if isinstance(keys, tuple) and os.path.isfile(out.fs_path):
            yield from _compare_json(out, scratch, partial(_unless_varying, keys))
        else:
            message = f"{stage.addressing} writes different bytes when run again{_where(out, str(value), scratch)}"
            yield Finding(FindingKind.NOT_REPRODUCED, path_from_root(out), message, (stage.addressing,))


def _inputs(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a stage's command, parameters and input hashes, which determine its outputs."""
    return entry.get("cmd"), entry.get("params"), {dep["path"]: dep.get("md5") for dep in entry.get("deps", ())}


def _unless_varying(varying: Collection[str], content: Any, keys: KeyPath) -> float | None:
    return None if keys[:1] and keys[0] in varying else 0.0


def _compare_json(out: Output, scratch: Path, tolerance: Tolerance, why: str = "") -> Iterator[Finding]:
    if not os.path.isfile(out.fs_path):
        return  # a finding of its own
    name = path_from_root(out)
    for difference in differences(Path(out.fs_path), scratch / name, tolerance):
        yield Finding(FindingKind.NOT_REPRODUCED, name, f"{difference}{why}", (out.stage.addressing,))


def _where(out: Output, value: str, scratch: Path) -> str:
    """Return which files of a folder differ, if both lists are known."""
    before = cached_listing(out) if out.hash_info.isdir else None
    now = listing_at(scratch / ".dvc/cache/files/md5" / value[:2] / value[2:])
    if before is None or now is None:
        return ""
    return f": {some(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))}"
