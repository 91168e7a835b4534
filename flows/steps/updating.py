"""Bring a comparison to the installed Merganser: its dvc.yaml, and the record of the code that makes its results.

Stages depend on the classes of code in that record: where the installed code was shown to write the same bytes, nothing
runs again.

Carry dvc.lock of version 0.1.0 over: its stages were `python -m tasks.X`, and depended on listings of their code.

A stage is kept if it is the same but for its command and for code that writes the same bytes; the ledger says that
names alone changed, and which stage ran.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dvcfleet.crash_recovery import recovered_lock_files, sync
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, read_lock_file
from dvcfleet.dvc_adapter.protocols import Dependency, PipelineStage, Repo, Stage
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stages import fill_from_lock, in_dvc_yaml, lock_entry_of, varying
from dvcfleet.dvc_adapter.storing import save_input, save_inputs, save_output
from dvcfleet.messages import Ending, Result
from dvcfleet.record.ledger import Ledger
from dvcfleet.repository import opened, state_folder, write_lock
from merganser.config import PARAMS
from merganser.errors import InputError, some
from merganser.flows.repositories.identity import identity
from merganser.flows.suites.shipped import shipped
from merganser.limits import read_small
from merganser.outputs import replacing
from merganser.tasks.code import installed_code, recorded_code, texts, write_code
from merganser.tasks.code_record import (
    RECORD,
    Code,
    Digest,
    kept_digests,
    other_code,
    other_results,
    pipeline_digest,
    read_record,
    record_text,
)
from merganser.tasks.stage import LISTINGS, code_tree
from merganser.tasks.stages import CODE

LOCK = Path("dvc.lock")
RUN = "update"  # in the ledger, in the place of a run's name
_OLD = "python -m tasks."
_SHOWN = 8  # stages that are named


def carry_over(repo: Repo) -> list[str]:
    """Rewrite the dvc.lock of version 0.1.0 as this version would have written it; return what to tell the user."""
    path = os.path.join(repo.root_dir, LOCK)
    entries = read_lock_file(path) if os.path.isfile(path) else {}
    is_old = any(str(entry.get("cmd")).startswith(_OLD) for entry in entries.values())
    if not is_old or (CODE / LISTINGS).is_file():  # what is old after that runs again
        return []
    before, hashes = recorded_code(Path(), code_tree()), _code_hashes(repo)
    ledger = Ledger(state_folder(repo), RUN, lambda: None, identity(Path(repo.root_dir)))
    locks = recovered_lock_files(repo, state_folder(repo))
    stages = [stage for stage in repo.index.stages if in_dvc_yaml(stage) and lock_file_of(stage) == path]
    kept, again = list[str](), list[str]()
    write_code()
    for stage in sorted(stages, key=lambda each: each.name != CODE.name):
        entry = entries.get(stage.name)
        if stage.name == CODE.name:
            save_inputs(stage)
            for out in stage.outs:
                save_output(out)
            ledger.note(Ending(stage.addressing, Result.DONE), locks.record(stage), varying(stage))
        elif entry and (now := _converted(stage, entry, before, hashes)):
            locks.record(stage, now)
            ledger.note(Ending(stage.addressing, Result.RENAMED), now, varying(stage), (stage.addressing, entry))
            kept.append(stage.addressing)
        elif entry:
            again.append(stage.addressing)
    locks.flush()
    locks.settle()
    sync(repo, state_folder(repo))
    forget_index(repo)
    said = [f"of version 0.1.0: {len(kept)} stages keep their results"]
    return said + [f"{len(again)} run again, because their code gives other results: {some(again, _SHOWN)}"] * bool(
        again
    )


def _code_hashes(repo: Repo) -> dict[str, str | None]:
    """Return the current hashes of the stages' dependencies in `data/code`."""
    hashes = dict[str, str | None]()
    for dep in (dep for stage in repo.index.stages for dep in _code_of(stage)):
        if dep.def_path not in hashes and os.path.exists(dep.fs_path):
            save_input(dep)
            hashes[dep.def_path] = dep.hash_info.value
    return hashes


def _code_of(stage: Stage) -> list[Dependency]:
    return [dep for dep in stage.deps if dep.def_path.startswith(f"{CODE}/")]


def _converted(
    stage: PipelineStage, entry: Mapping[str, Any], before: Mapping[str, Digest], hashes: Mapping[str, str | None]
) -> dict[str, Any] | None:
    """Return a stage's entry as the installed package writes it; None if its results would differ.

    `before`, `hashes`: the content of `data/code` and its hashes; nothing is known of code of another time.
    """
    code = _code_of(stage)
    recorded = {dep["path"]: dep.get("md5") for dep in entry.get("deps", ())}
    if not all(recorded.get(dep.def_path) == hashes.get(dep.def_path) for dep in code):
        return None
    if not all(_is_known(dep.def_path, before) for dep in code):
        return None
    fill_from_lock(stage, entry)
    for dep in code:
        save_input(dep)
    now = lock_entry_of(stage)
    kept = all(_named(now, key) == _named(entry, key) for key in ("deps", "outs"))
    return now if kept and now.get("params") == entry.get("params") else None


def _is_known(path: str, before: Mapping[str, Digest]) -> bool:
    """Tell whether a file of classes, or each file in a folder of them, has its earlier content."""
    place = Path(path)
    files = list(place.rglob("*.txt")) if place.is_dir() else [place]
    names = {each.relative_to(CODE).as_posix(): each.read_text(encoding="utf-8").strip() for each in files}
    there = {name for name in before if (CODE / name) == place or place in (CODE / name).parents}
    return names.keys() == there and all(before[name].of == of for name, of in names.items())


def _named(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the hashes of an entry's dependencies or outputs by path, without those of code."""
    listed = {each["path"]: {k: v for k, v in each.items() if k != "path"} for each in entry.get(key, ())}
    return {path: None if path.startswith(f"{CODE}/") else hashes for path, hashes in listed.items()}


DVC_YAML = Path("dvc.yaml")
CHANGELOG = Path("CHANGELOG.md")
ALL = "all"  # in the place of names to keep
CHANGED_RESULTS = "Results that change"  # the heading there
_OF_CLONE = re.compile(r"deps: \[.*merganser, tasks\]")  # of the stage `code`


def dvc_yaml() -> str:
    """Return the dvc.yaml of comparisons."""
    text = (shipped() / DVC_YAML).read_text(encoding="utf-8")
    return _OF_CLONE.sub(f"deps: [{RECORD}]", text)


def new_record() -> Code:
    """Return the code record of a new comparison."""
    return replace(installed_code(code_tree()), pipeline=pipeline_digest(dvc_yaml()))


def updated_record(root: Path, keep: Collection[str] | None = None) -> Code | None:
    """Return the code record that an update would write; None in a clone, which has none.

    `keep`: stages and methods whose results stay as recorded, or `ALL` that changed; None: those kept before.
    Raises InputError for names whose results the installed version does not change.
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
    """Update the comparison at `root` to the installed code; return what to tell the user. Nothing runs.

    `keep`: as in `updated_record`. Raises InputError in a clone, which has its own code, and if dvc.yaml was
    edited.
    """
    if not (root / RECORD).is_file():
        raise InputError(f"{root}: has no {RECORD} to update; a clone of Merganser's runs its own code")
    with opened(root) as repo, write_lock(repo):
        said = list(renew(repo, keep))
        sync(repo, state_folder(repo))
    return said or [f"Merganser {read_record(root).version}: nothing changes"]


def renew(repo: Repo, keep: Collection[str] | None = None) -> Iterator[str]:
    """Update a locked comparison to the installed code; say what changes. Raises InputError for an edited dvc.yaml."""
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
        from merganser.config.loading import load_params  # imports pydantic
        from merganser.config.points import write_points  # imports torch

        write_points(load_params(PARAMS), root)  # which this version's dvc.yaml reads
        with replacing(root / DVC_YAML) as out:
            out.write(text.encode())
    _renew_schema(root)
    with replacing(root / RECORD) as out:
        out.write(record_text(now).encode())
    forget_index(repo)
    yield from _said(before, now)


def _renew_schema(root: Path) -> None:
    """Replace an earlier version's JSON Schema of params.yaml by the installed one's."""
    from merganser.config.describing import SCHEMA_FILE, schema_text  # imports pydantic

    place = root / SCHEMA_FILE
    if place.is_file() and not place.is_symlink():
        with replacing(place) as out:
            out.write(schema_text().encode())


def other_version(root: Path) -> dict[str, str]:
    """Return why the stage `code` must run if other code is installed, for the plan of `--dry-run`."""
    now = updated_record(root)
    if now is None or now == (before := read_record(root)):
        return {}
    if before.version == now.version and (names := other_code(before, now)):  # as of a method of the comparison's own
        return {"code": f"other code of {_listed(names)}; a run records it"}
    return {"code": f"Merganser {now.version} is installed; a run updates the comparison to it"}


def predicted_code() -> dict[str, str] | None:
    """Return the texts that the stage `code` will write in the current folder, by path; None if it will fail."""
    try:
        class_texts = texts(code_tree(), updated_record(Path()))
    except InputError:
        return None
    return {f"{CODE}/{name}": text for name, text in class_texts.items()}


def _said(before: Code, now: Code) -> Iterator[str]:
    """Return what an update changed, in words."""
    if before.version != now.version:
        yield f"Merganser {now.version}; the results here are by {before.version}"
    moved, kept = other_results(before, now), kept_digests(now)
    both = [(before.digests[name], now.digests[name]) for name in before.digests.keys() & now.digests.keys()]
    same = sum(old != new and old.of == new.of and not new.kept for old, new in both)
    if same:
        yield f"{same} stages and methods have other code that writes the same bytes: their results stay"
    words = changes_since(before.version)
    for name in moved:
        yield f"{name.removesuffix('.txt')}: other results{_why(name.removesuffix('.txt'), words)}"
    if new := now.digests.keys() - before.digests:
        yield f"new: {_listed(new)}"
    if gone := before.digests.keys() - now.digests:
        yield f"gone: {_listed(gone)}"
    if kept:
        yield f"kept as before, and refused if they have to run: {_listed(kept)}"


def _listed(names: Iterable[str]) -> str:
    """Name stages and methods by their files in `data/code`."""
    return some(sorted(name.removesuffix(".txt") for name in names))


def changes_since(version: str) -> list[str]:
    """List the changelog's lines on changed results in the versions after one, such as 0.1.0."""
    changes: list[str] = []
    for section in (shipped() / CHANGELOG).read_text(encoding="utf-8").split("\n## ")[1:]:
        if section.split()[0] == version:
            break
        _, _, results = section.partition(f"\n### {CHANGED_RESULTS}\n")
        changes += re.findall(r"^- (.+)$", results.partition("\n### ")[0], re.MULTILINE)
    return changes


def _why(name: str, words: Collection[str]) -> str:
    """Return the changelog's reason for the changed results of a stage or method, after a colon."""
    said = [line for line in words if f"`{name.rpartition('/')[2]}`" in line]
    return f": {' '.join(said)}" if said else ""
