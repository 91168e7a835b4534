"""Check at the start of a run whether the branches that sources follow have moved."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.planning.reasons import parsed

if TYPE_CHECKING:
    from merganser.sources.following import Kind

PARAMS = Path("params.yaml")
_FOLLOWS = re.compile(r"\bfollow\s*:")


def follow_sources(say: Callable[[str], None]) -> None:
    """Pin each pointer file of a checked params.yaml that follows a branch to what the branch holds now.

    When the hub does not answer, the run continues with the revisions that are pinned. Raises InputError where
    the hub has no such branch.
    """
    moving = list(_moving(_params()))
    if not moving:
        return
    # It imports torch: not for a run that follows nothing.
    from merganser.sources.following import HubAwayError, follow

    for path, kind in moving:
        try:
            revision = follow(path, kind)
        except HubAwayError as away:
            say(f"{away}; going on with the revision that it has")
            continue
        if revision:
            say(f"{path}: moved to {revision}")


def _params() -> Any:
    stat = os.stat(PARAMS)
    return parsed(os.path.abspath(PARAMS), stat.st_mtime_ns, stat.st_size)


def _moving(params: Any) -> Iterator[tuple[Path, "Kind"]]:
    """Find the pointer files that follow something."""
    tasks = params["tasks"].values()
    models = [params["base"]["source"], *(task["source"] for task in tasks)]
    sources: list[tuple[str, Kind]] = [(source, "model") for source in models]
    sources += [(task["data"]["source"], "dataset") for task in tasks]
    for source, kind in sources:
        path = Path(source)
        if path.suffix in (".yaml", ".yml") and path.is_file() and _FOLLOWS.search(path.read_text(encoding="utf-8")):
            yield path, kind
