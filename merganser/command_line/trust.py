"""Which clones' own code may run: those this environment was made for, and those that the user has said to trust.

A downloaded folder can look like a clone of Merganser, so looking like one is not enough.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from merganser.errors import InputError
from merganser.outputs import write_whole

FILE = Path("merganser/trusted")  # in the user's settings: an absolute path a line


def trust(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="A clone of Merganser.", show_default=False)] = Path(),
    remove: Annotated[bool, typer.Option("--remove", help="Stop trusting it.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the trusted folders.")] = False,
) -> None:
    """Trust a clone's code: commands in the clone may then run it from any environment.

    Only a clone without an environment needs this; `make venv` there creates one.
    """
    if show:
        print(*trusted_folders(), sep="\n")
        return
    root = folder.resolve()
    if not remove and not root.is_dir():
        raise InputError(f"{folder}: no such folder; name the clone to trust")
    others = [path for path in trusted_folders() if path != root]
    lines = [*map(str, others), *([] if remove else [str(root)])]
    if any("\n" in line for line in lines):
        raise InputError(f"{folder}: its path has a line break; move the clone")
    settings_file().parent.mkdir(parents=True, exist_ok=True)
    write_whole(settings_file(), "".join(f"{line}\n" for line in lines))
    print(f"{root} is {'no longer trusted' if remove else 'trusted: its own code runs in commands there'}")


def is_trusted(root: Path, own: Path) -> bool:
    """Tell whether a clone's own code may run; `own`: the folder that this package was imported from."""
    root = root.resolve()
    made_for_it = Path(sys.prefix).resolve().is_relative_to(root)
    return root == own or made_for_it or root in registered_worktrees(own) or root in trusted_folders()


def trusted_folders() -> list[Path]:
    """Return the folders that the user has said to trust."""
    try:
        return [Path(line) for line in settings_file().read_text(encoding="utf-8").splitlines() if line]
    except FileNotFoundError:
        return []


def settings_file() -> Path:
    """Return the file in the user's settings that lists trusted folders."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / FILE


def registered_worktrees(clone: Path) -> set[Path]:
    """Return the worktrees that a clone's own git knows, as `git worktree add` makes them; and the clone's."""
    git = clone / ".git"
    if git.is_file():  # a worktree itself
        git = Path(git.read_text(encoding="utf-8").removeprefix("gitdir: ").strip()).parents[1]
    files = sorted(git.glob("worktrees/*/gitdir"))
    return {git.parent, *(Path(file.read_text(encoding="utf-8").strip()).parent for file in files)}
