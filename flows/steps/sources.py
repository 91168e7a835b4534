"""Checks of sources before a run: the models' licences, and new commits on branches that sources follow."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.planning.reasons import parse_params_cached
from dvcfleet.terminal.secrets import masked
from merganser.checkpoints.architecture import read_object
from merganser.checkpoints.companions import ModelOrigin, described_origin
from merganser.checkpoints.reading import DESCRIPTION
from merganser.config import PARAMS
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.limits import SMALL
from merganser.merging.licences import licence_warnings
from merganser.sources.fetching import description_of, known_facts
from merganser.sources.pointers import read_pointer
from merganser.tasks.stages import BASE, CHECKPOINTS

if TYPE_CHECKING:
    from merganser.sources.pointers import RepoType


def licence_notes(params: Params) -> list[str]:
    """Return warnings about licences of a comparison's models that do not go together; asks no hub."""
    fetched = {CHECKPOINTS / name: Path(task.source) for name, task in params.tasks.items()}
    if params.base_source is not None:
        fetched = {BASE: Path(params.base_source)} | fetched
    origins = {str(folder): _origin(source, folder) for folder, source in fetched.items()}
    return [masked(f"licences: {line}") for line in licence_warnings(origins)]


def _origin(source: Path, folder: Path) -> ModelOrigin:
    """Return the origin recorded in a folder, if it is this source's; else what its name tells."""
    try:
        expected = description_of(source, read_pointer(source))
        description = read_object(folder / DESCRIPTION, SMALL) or {}
        facts = description if expected.items() <= description.items() else {**expected, **known_facts(source)}
    except InputError:  # said when it is read
        return ModelOrigin(str(source))
    return described_origin({**facts, "files": {}})


UNMEASURED = "unmeasured"  # a kind of task without data; merganser.config.params imports pydantic, for too long
_FOLLOWS = re.compile(r"\bfollow\s*:")


def follow_sources(say: Callable[[str], None]) -> None:
    """Pin each pointer file that follows a branch, in a checked params.yaml, to the branch's latest commit.

    If the hub does not answer, the run continues with the pinned revisions. Raises InputError if the branch does
    not exist.
    """
    moving = list(_moving(_params()))
    if not moving:
        return
    # This imports torch: only if something is followed.
    from merganser.sources.following import HubAwayError, follow

    for path, repo_type in moving:
        try:
            revisions = follow(path, repo_type)
        except HubAwayError as away:
            say(f"{away}; continuing with the pinned revision")
            continue
        for hub, revision in revisions.items():
            say(f"{path}: {hub} moved to {revision}")


def _params() -> Any:
    stat = os.stat(PARAMS)
    return parse_params_cached(os.path.abspath(PARAMS), stat.st_mtime_ns, stat.st_size)


def _moving(params: Any) -> Iterator[tuple[Path, "RepoType"]]:
    """Find the pointer files that follow a branch."""
    tasks = params["tasks"].values()
    models = [params["base"]["source"], *(task["source"] for task in tasks)]
    sources: list[tuple[str, RepoType]] = [(source, "model") for source in models]
    sources += [(task["data"]["source"], "dataset") for task in tasks if task.get("kind") != UNMEASURED]
    unseen = params.get("unseen", {}).values()
    sources += [(task["data"]["source"], "dataset") for task in unseen]
    sources += [(task["head"], "model") for task in unseen if "head" in task]
    for source, repo_type in sources:
        path = Path(source)
        if path.suffix in (".yaml", ".yml") and path.is_file() and _FOLLOWS.search(path.read_text(encoding="utf-8")):
            yield path, repo_type
