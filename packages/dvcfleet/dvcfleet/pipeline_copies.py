"""Copies of a repository's dvc.yaml files while stages run, which may write to them, in case the run is killed."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from dvcfleet.disk import write_durably
from dvcfleet.dvc_adapter.yaml_maps import add_missing, is_destroyed, parse_map, restore_map

FOLDER = "pipeline-copies"


def read_text_file(path: Path) -> str | None:
    """Return a file's text; None if there is none, or if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def rewrite(path: Path, text: str) -> None:
    """Replace a file's text, and keep its mode, and the link if it is one."""
    place = Path(os.path.realpath(path))
    mode = place.stat().st_mode if place.exists() else None
    write_durably(place, text)
    if mode is not None:
        place.chmod(mode)


def keep_copies(root: Path, state: Path, texts: Mapping[Path, str]) -> None:
    """Keep copies of files inside `root` in the state folder."""
    for path, text in texts.items():
        if path.is_relative_to(root):
            copy = state / FOLDER / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")


def forget_copies(state: Path) -> None:
    """Remove all copies."""
    shutil.rmtree(state / FOLDER, ignore_errors=True)


def restore_destroyed(root: Path, state: Path, say: Callable[[str], None]) -> None:
    """Restore what a killed run's stages left of a dvc.yaml that has lost its stages, and remove the copies."""
    for copy in sorted((state / FOLDER).rglob("*")):
        path, before = root / copy.relative_to(state / FOLDER), read_text_file(copy)
        if before is None:
            continue
        now = parse_map(read_text_file(path) or "")
        if is_destroyed(now, parse_map(before)):
            rewrite(path, restore_map(before, now, {}))
            lost = add_missing(now or {}, parse_map(before))
            say(f"{path.relative_to(root)} had lost {', '.join(lost)} when a run was killed: restored")
    forget_copies(state)
