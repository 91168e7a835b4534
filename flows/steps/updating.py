"""Bring a comparison to the installed Merganser: its dvc.yaml, and the record of the code that makes its results.

Stages depend on the classes of code in that record: where the installed code was shown to write the same bytes, nothing
runs again.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from dvcfleet.crash_recovery import sync
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.repository import opened, state_folder, write_lock
from merganser.errors import InputError, some
from merganser.flows.suites.shipped import shipped
from merganser.limits import read_small
from merganser.outputs import replacing
from merganser.tasks.code import installed_code, texts
from merganser.tasks.code_record import (
    RECORD,
    Code,
    kept_digests,
    other_code,
    other_results,
    pipeline_digest,
    read_record,
    record_text,
)
from merganser.tasks.stage import code_tree
from merganser.tasks.stages import CODE

DVC_YAML = Path("dvc.yaml")
CHANGELOG = Path("CHANGELOG.md")
ALL = "all"  # in the place of names to keep
CHANGED_RESULTS = "Results that change"  # the heading there
_OF_CLONE = re.compile(r"deps: \[.*merganser, tasks\]")  # of the stage `code`


def dvc_yaml() -> str:
    """Return the dvc.yaml of a comparison."""
    text = (shipped() / DVC_YAML).read_text(encoding="utf-8")
    return _OF_CLONE.sub(f"deps: [{RECORD}]", text)


def new_record() -> Code:
    """Return the record of a comparison that begins now."""
    return replace(installed_code(code_tree()), pipeline=pipeline_digest(dvc_yaml()))


def updated_record(root: Path, keep: Collection[str] | None = None) -> Code | None:
    """Return a comparison's record as an update would write it; None in a clone, which has none.

    `keep`: the stages and methods whose results stay as they were recorded, or `ALL` that changed; None: those that
    were kept before. Raises InputError for names of which the installed version changes no results.
    """
    if not (root / RECORD).is_file():
        return None
    before, now = read_record(root), new_record()
    moved = {name.removesuffix(".txt") for name in other_results(before, now)}
    if keep is None:
        kept = moved & {name.removesuffix(".txt") for name in kept_digests(before)}
    else:
        kept = moved if ALL in keep else set(keep)
    if unknown := sorted(kept - moved):
        raise InputError(f"--keep: the installed version changes no results of {some(unknown)}")
    recorded = {f"{name}.txt": before.digests[f"{name}.txt"] for name in kept}
    digests = {name: replace(digest, kept=digest.kept or before.version) for name, digest in recorded.items()}
    return replace(now, digests={**now.digests, **digests})


def update(root: Path, keep: Collection[str] = ()) -> list[str]:
    """Bring the comparison at `root` to the installed code; return what there is to say. Nothing runs.

    `keep`: as in `updated_record`. Raises InputError in a clone, which has its own code, and where dvc.yaml was edited.
    """
    if not (root / RECORD).is_file():
        raise InputError(f"{root}: has no {RECORD} to update; a clone of Merganser's runs its own code")
    with opened(root) as repo, write_lock(repo):
        said = list(renew(repo, keep))
        sync(repo, state_folder(repo))
    return said or [f"Merganser {read_record(root).version}: nothing changes"]


def renew(repo: Repo, keep: Collection[str] | None = None) -> Iterator[str]:
    """Bring a repository whose lock is held to the installed code, if it is a comparison; say what changes.

    Raises InputError where dvc.yaml was edited since a version wrote it.
    """
    root = Path(repo.root_dir)
    now = updated_record(root, keep)
    if now is None:
        return
    before, text = read_record(root), dvc_yaml()
    here = read_small(root / DVC_YAML).decode()
    if before == now and here == text:
        return
    if here != text and pipeline_digest(here) != before.pipeline:
        raise InputError(
            f"{DVC_YAML}: was edited since Merganser {before.version} wrote it, and an update would overwrite that; "
            f"put stages of your own into the dvc.yaml of a folder below, and `git checkout {DVC_YAML}`"
        )
    if here != text:
        with replacing(root / DVC_YAML) as out:
            out.write(text.encode())
    _write(root, now)
    forget_index(repo)
    yield from _said(before, now)


def other_version(root: Path) -> dict[str, str]:
    """Say why the stage `code` has to run where the installed code is not the recorded one, as `--dry-run` plans it."""
    now = updated_record(root)
    if now is None or now == read_record(root):
        return {}
    return {"code": f"Merganser {now.version} is installed, which a run brings the comparison to"}


def predicted_code() -> dict[str, str] | None:
    """Return the texts that the stage `code` will write in the current folder, by path; None if it will fail."""
    try:
        found = texts(code_tree(), updated_record(Path()))
    except InputError:
        return None
    return {f"{CODE}/{name}": text for name, text in found.items()}


def _write(root: Path, record: Code) -> None:
    with replacing(root / RECORD) as out:
        out.write(record_text(record).encode())


def _said(before: Code, now: Code) -> Iterator[str]:
    """Say what an update changed."""
    if before.version != now.version:
        yield f"Merganser {now.version}; the results here are by {before.version}"
    moved, kept = other_results(before, now), kept_digests(now)
    same = len(other_code(before, now)) - len(moved) - len(kept)
    if same:
        yield f"{same} stages and methods have other code that writes the same bytes: their results stay"
    words = changes_since(before.version)
    for name in moved:
        yield f"{name.removesuffix('.txt')}: other results{_why(name.removesuffix('.txt'), words)}"
    if kept:
        yield f"kept as before, and refused if they have to run: {some(sorted(n.removesuffix('.txt') for n in kept))}"


def changes_since(version: str) -> list[str]:
    """List what the changelog says of results that changed in the versions after one; `version`: such as 0.1.0."""
    found: list[str] = []
    for section in (shipped() / CHANGELOG).read_text(encoding="utf-8").split("\n## ")[1:]:
        if section.split()[0] == version:
            break
        _, _, results = section.partition(f"\n### {CHANGED_RESULTS}\n")
        found += re.findall(r"^- (.+)$", results.partition("\n### ")[0], re.MULTILINE)
    return found


def _why(name: str, words: Collection[str]) -> str:
    """Return what the changelog says of a stage's or method's results, after a colon."""
    said = [line for line in words if f"`{name.rpartition('/')[2]}`" in line]
    return f": {' '.join(said)}" if said else ""
