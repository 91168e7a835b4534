"""The metrics before a run, and why its stages ran: with them the report shows what changed since the last run."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json, write_durably
from merganser.tasks.stages import EXAMPLES, METRICS, PREVIOUS, PREVIOUS_METRICS, UNSEEN

_NUMBERS = Path("metrics.json")


def keep_previous_metrics(folder: Path, causes: Mapping[str, Sequence[str]], run: str) -> None:
    """Save the metrics before the run's first stage changes them, and why its stages run.

    A run that is continued after a failure or a kill keeps the metrics of its first start.
    """
    path = folder / PREVIOUS_METRICS.name
    kept = _kept(path)
    if kept.get("run") != run:
        kept = {"run": run, "numbers": read_json(_NUMBERS) or {}, "causes": {}}
        _keep_files(folder / PREVIOUS.name)
    kept["causes"] |= causes
    write_durably(path, json.dumps(kept))


def _keep_files(folder: Path) -> None:
    """Keep the scores and the examples' results as links: stages give their outputs new files."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in (METRICS, EXAMPLES, UNSEEN):
        with suppress(OSError):  # without them the report tests no difference
            shutil.copytree(source, folder / source.relative_to(METRICS.parent), copy_function=link_or_copy)


def link_or_copy(source: str, copy: str) -> None:
    """Give a file a second name, or copy it where its disk has no links."""
    try:
        os.link(source, copy)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, copy)


def kept_metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics before the run, by entry; empty if there were none."""
    return dict(_kept(folder / PREVIOUS_METRICS.name).get("numbers", {}))


def _kept(path: Path) -> dict[str, Any]:
    """Read what was saved; nothing if it is damaged, as a power cut may leave it: then no change is said."""
    found = read_json(path)
    if found and _is_table(found.get("numbers")) and isinstance(found.get("causes"), dict):
        return found
    if path.exists():
        print(f"{path} was damaged: the report shows no changes since the last run", file=sys.stderr)
    return {}


def _is_table(numbers: Any) -> bool:
    return isinstance(numbers, dict) and all(isinstance(values, dict) for values in numbers.values())
