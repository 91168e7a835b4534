"""The code of a run beside its commit: what differed from it, as a patch that `git apply` puts on the commit again."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from dvcfleet.errors import some
from dvcfleet.git import GitError, git, git_if_any
from dvcfleet.record.kept import keep, sha256

CHANGES = "changes"
# What git neither tracks nor ignores is code by its suffix: else it is data, which dvc.lock has, or may be a secret.
_CODE = ("py", "pyx", "ipynb", "sh", "R", "jl", "c", "cc", "cpp", "cu", "h", "hpp", "rs")
_LARGEST = 16 * 2**20  # bytes of such code: more is somebody's library, such as an environment
_NOT_LOCKS = ":(exclude,glob)**/dvc.lock"  # which a run changes


def current_commit(root: Path) -> tuple[str | None, bool | None]:
    """Return git's current commit, and whether tracked files differ from it; None if there is no commit.

    dvc.lock does not count, since a run changes it.
    """
    head = git_if_any(root, "rev-parse", "HEAD")
    if head is None:
        return None, None
    return head.strip(), git_if_any(root, "diff", "--quiet", "HEAD", "--", ".", _NOT_LOCKS) is None


def keep_changes(folder: Path, dirty: bool) -> str | None:
    """Keep how the code around a state folder differs from git's current commit; return the digest.

    `dirty`: whether tracked files differ. The code that git neither tracks nor ignores is in the patch as new files; if
    there is too much of it, the patch's first line says so. None: nothing differs, git refuses, or the
    disk is full.
    """
    with suppress(GitError, OSError):
        root, left_out = folder.parent, b""
        unknown = unknown_code(root)
        if sum((root / name).stat().st_size for name in unknown) > _LARGEST:
            left_out = f"left out, neither tracked nor ignored by git: {some(unknown)}\n".encode()
            unknown = []
        if dirty or unknown or left_out:
            patch = left_out + _patch(root, folder, unknown)
            keep(changes_file(folder, sha256(patch)), patch)
            return sha256(patch)
    return None


def changes_file(folder: Path, digest: str) -> Path:
    """Return the path of a patch."""
    return folder / CHANGES / f"{digest}.patch"


def unknown_code(root: Path) -> list[str]:
    """List the files of code that git neither tracks nor ignores."""
    patterns = [f":(glob)**/*.{suffix}" for suffix in _CODE]
    listed = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *patterns).split("\0")
    return [name for name in listed if name and (root / name).is_file()]


def _patch(root: Path, folder: Path, unknown: list[str]) -> bytes:
    """Return the difference from the commit; git's index is a copy, in which the unknown files are announced."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        index = Path(scratch) / "index"
        shutil.copy2(root / git(root, "rev-parse", "--git-path", "index").strip(), index)
        environment = os.environ | {"GIT_INDEX_FILE": str(index)}
        if unknown:
            add = ("--literal-pathspecs", "add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(root, *add, given="\0".join(unknown), environment=environment)
        names = ("--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/")
        diff = git(root, "diff", "--binary", *names, "HEAD", "--", ".", _NOT_LOCKS, environment=environment)
    return os.fsencode(diff)
