"""Trials: this comparison with some values changed, in a workspace of its own that shares DVC's cache.

The comparison's params.yaml, dvc.lock and report stay as they are. The trial's own params.yaml lists its changes under
`trial`; its report, lineage and MLflow runs show them.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvcfleet.git import GitError, git
from merganser.config import POINTS_FILE
from merganser.config.completing import additions, filled
from merganser.config.loading import check_params
from merganser.config.points import write_points
from merganser.errors import MALFORMED, InputError, did_you_mean
from merganser.flows.repositories.comparisons import LOCAL_CONFIG, copy_choices, link_sources, set_here, share_cache
from merganser.flows.repositories.identity import TRIALS
from merganser.flows.suites.files import only_what_is_read, params_text
from merganser.flows.suites.ready import PARAMS, sources_of
from merganser.hashes import sha256_of_json
from merganser.limits import parse_yaml, read_yaml
from merganser.tasks.tracking import ARTIFACTS, STORE

REFERENCES = ("base", "individual")  # methods whose entries every trial keeps
CODE = ("flows", "merganser", "packages", "tasks")
HEAD = "# A trial of {root}: `merganser run` with other values. What it has otherwise stands under `trial`.\n\n"


@dataclass(frozen=True)
class Wish:
    """The changes of a trial: `KEY=VALUE` texts, entries, tasks, and the largest number of examples of each task."""

    settings: Sequence[str] = ()
    only: str | None = None
    tasks: str | None = None
    examples: int | None = None


def changed(content: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    """Return a trial's params.yaml, with old and new values under `trial`; raise InputError for an unknown name."""
    new: dict[str, Any] = json.loads(json.dumps(content))  # a copy, whose values may be replaced
    before: dict[str, Any] = {}
    for text in wish.settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InputError(f"--set: expected KEY=VALUE, such as methods.ties.density=0.3, got {text!r}")
        before[key] = _set(new, key.split("."), parse_yaml(value, f"--set {key}"))
    if wish.only is not None:
        named = _named("--only", wish.only, new["methods"])
        before["methods"] = list(new["methods"])
        new = only_what_is_read(new, [name for name in new["methods"] if name in _with_needed(new, named)])
        new.pop("studies", None)
    if wish.tasks is not None:
        named = _named("--tasks", wish.tasks, new["tasks"])
        before["tasks"] = list(new["tasks"])
        new["tasks"] = {name: task for name, task in new["tasks"].items() if name in named}
    if wish.examples is not None:
        split = new["evaluation"]["split"]
        name = split["name"] if isinstance(split, dict) else split
        before["evaluation.split"] = split
        new["evaluation"]["split"] = {"name": name, "examples": wish.examples}
    if wish.tasks is not None or wish.examples is not None:
        new.pop("published", None)  # papers report all tasks on all examples
    now = {key: _at(new, key.split(".")) for key in before}
    now |= {key: list(now[key]) for key in ("methods", "tasks") if key in now}
    return new | {"trial": {key: {"before": before[key], "now": now[key]} for key in before}}


def make_trial(root: Path, wish: Wish) -> tuple[Path, list[str]]:
    """Create or update the workspace of a trial; return it, and the changes.

    Its code and small files are copies of those here, committed or not; models and data in folders are links.
    Raises InputError if the changed params.yaml is refused, or without git.
    """
    here = read_yaml(root / PARAMS)
    with chdir(root):  # where its own methods are found
        own = filled(here, additions(here))
        try:
            content = changed(own, wish)
        except MALFORMED:
            check_params(own, PARAMS)  # may say what is wrong with the file itself
            raise
        params = check_params(content, PARAMS)
    folder = root / TRIALS / sha256_of_json(content["trial"])[:8]
    linked = [source for source in sources_of(params) if (root / source).is_dir()]
    _copy(root, folder, [path for path in _files(root) if not any(each in path.parents for each in linked)])
    if not (folder / LOCAL_CONFIG).is_file():
        share_cache(root, folder)
        copy_choices(root, folder)
        set_here(folder, "core", "no_scm", "true")  # it lies in a folder that git ignores
    (folder / PARAMS).write_text(HEAD.format(root=root.name) + params_text(content), encoding="utf-8")
    write_points(params, folder)
    list(link_sources(root, folder))
    for store in (STORE, ARTIFACTS):  # MLflow has trials beside the comparison's runs
        if (root / store).exists() and not (folder / store).exists():
            (folder / store).symlink_to(root / store)
    return folder, [f"{key}: {change.shown}" for key, change in params.trial.items()]


def _set(content: dict[str, Any], keys: list[str], value: Any) -> Any:
    """Replace a value; return the old one, None if there was none."""
    place = _at(content, keys[:-1])
    if not isinstance(place, dict):
        raise InputError(f"--set {'.'.join(keys)}: {'.'.join(keys[:-1])} has no keys")
    before = place.get(keys[-1])
    place[keys[-1]] = value
    return before


def _at(content: Any, keys: Sequence[str]) -> Any:
    for number, key in enumerate(keys):
        if not isinstance(content, dict) or key not in content:
            known = content if isinstance(content, dict) else {}
            where = ".".join(keys[: number + 1])
            raise InputError(f"--set: params.yaml has no {where}{did_you_mean(key, known)}")
        content = content[key]
    return content


def _named(option: str, text: str, known: Mapping[str, Any]) -> set[str]:
    names = {name.strip() for name in text.split(",")}
    for name in names:
        if name not in known:
            raise InputError(f"{option}: params.yaml has no {name!r}{did_you_mean(name, known)}")
    return names


def _with_needed(content: Mapping[str, Any], names: set[str]) -> set[str]:
    """Return entries with the references, and with the entries that their difference vectors start from."""
    entries = content["methods"]
    needed = names | {name for name, entry in entries.items() if entry["method"] in REFERENCES}
    while True:
        read = only_what_is_read(content, sorted(needed)).get("differences", {})
        more = {each["merged"] for each in read.values() if each["merged"] in entries} - needed
        if not more:
            return needed
        needed |= more


def _files(root: Path) -> Iterator[Path]:
    """List the files that git tracks or would add, relative to the root, without a trial's own files."""
    try:
        listed = git(root, "ls-files", "-co", "--exclude-standard", "--deduplicate", "-z")
    except GitError as error:
        raise InputError(
            f"{root}: a trial copies the files that git does not ignore, and git cannot list them: {error}"
        ) from error
    for path in map(Path, filter(None, listed.split("\0"))):
        if path not in (PARAMS, POINTS_FILE, Path("dvc.lock"), LOCAL_CONFIG) and (
            (root / path).is_file() or (root / path).is_symlink()
        ):
            yield path


def _copy(root: Path, folder: Path, files: Sequence[Path]) -> None:
    """Copy links and files that differ; remove code that no longer exists."""
    for path in files:
        source, copy = root / path, folder / path
        if copy.is_file() and not source.is_symlink() | copy.is_symlink() and _version(copy) == _version(source):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)
    known = set(files)
    for name in CODE:
        for path in (folder / name).rglob("*.py"):
            if path.relative_to(folder) not in known:
                path.unlink()


def _version(path: Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size
