"""Run git."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class GitError(Exception):
    """Git refused; the message is git's."""


def git(root: Path | str, *arguments: str, given: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run git in a folder, with `given` as its input; return what it prints.

    Raises GitError if it fails, FileNotFoundError if it is not installed.
    """
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, input=os.fsencode(given), env=environment, capture_output=True, check=False)
    if done.returncode:
        raise GitError(os.fsdecode(done.stderr).strip())
    return os.fsdecode(done.stdout)


def git_if_any(root: Path | str, *arguments: str) -> str | None:
    """Return what git prints; None if it fails or is not installed."""
    try:
        return git(root, *arguments)
    except (GitError, FileNotFoundError):
        return None
