"""Run git."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class GitError(Exception):
    """Git is not installed, or refused; the message is git's."""


def git(root: Path | str, *arguments: str, given: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run git in a folder, with `given` as its input; return what it prints, or raise GitError."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, input=os.fsencode(given), env=environment, capture_output=True, check=False)
    except OSError as error:
        is_refused = isinstance(error, PermissionError)
        raise GitError("git cannot be executed" if is_refused else "git is not installed") from error
    if done.returncode:
        raise GitError(os.fsdecode(done.stderr).strip())
    return os.fsdecode(done.stdout)


def git_if_any(root: Path | str, *arguments: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return what git prints; None if it fails or is not installed."""
    try:
        return git(root, *arguments, environment=environment)
    except GitError:
        return None


def without_git(refusal: str) -> str:
    """Return what a run lacks if git fails or is missing, and the remedy.

    >>> print(without_git("git is not installed"))
    git is not installed: the run goes on without it, and its ledger names neither the commit nor uncommitted changes
    """
    first, *more = [line.strip() for line in refusal.splitlines() if line.strip()]
    advice = next((f"; `{line}` lets git read it" for line in more if "safe.directory" in line), "")
    without = "the run goes on without it, and its ledger names neither the commit nor uncommitted changes"
    words = first if first.startswith("git ") else f"git refuses ({first.removeprefix('fatal: ')})"
    return f"{words}: {without}{advice}"


def own_environment() -> dict[str, str]:
    """Return the environment without variables that point git to another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
