"""The code in an archive's git bundle: checked before any of it is written, and checked out with all settings off."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from dvcfleet.git import GitError, git, own_environment
from merganser.errors import InputError
from merganser.flows.evidence.archive.form import BUNDLE, copy_bytes
from merganser.flows.evidence.archive.paths import why_refused, wrong_links

BRANCH, WORKSPACE = "refs/heads/comparison", "refs/archive/workspace"
LARGEST = 4 * 2**30  # bytes of code, unpacked
_LONGEST_LINK = 4096
# No hook, monitor, filter, submodule, transport or setting but these runs or counts, whoever's it is.
_SETTINGS = {
    **{"core.hooksPath": os.devnull, "core.fsmonitor": "false", "core.attributesFile": os.devnull},
    **{"core.protectHFS": "true", "core.protectNTFS": "true", "core.symlinks": "true", "core.autocrlf": "false"},
    **{"safe.bareRepository": "explicit", "submodule.recurse": "false", "protocol.allow": "never"},
    **{"protocol.file.allow": "always", "gc.auto": "0", "maintenance.auto": "false", "fetch.unpackLimit": "1"},
}


def quiet_git() -> dict[str, str]:
    """Return the variables by which git takes no settings of the user or the system, and runs nothing of anybody's."""
    numbered = enumerate(_SETTINGS.items())
    given = {
        f"GIT_CONFIG_{what}_{n}": each
        for n, pair in numbered
        for what, each in zip(("KEY", "VALUE"), pair, strict=False)
    }
    alone = dict.fromkeys(("GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM"), "1") | {"GIT_TERMINAL_PROMPT": "0"}
    nobody = dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull)
    return {**given, "GIT_CONFIG_COUNT": str(len(_SETTINGS)), **alone, **nobody}


def check_out_code(source: BinaryIO, size: int, folder: Path) -> None:
    """Bring back the commit as HEAD, and the code as it was with it: changed, removed or unknown to git.

    Raises InputError, before any of the code is written, if it holds what an archive may not.
    """
    environment = own_environment() | quiet_git()
    try:
        with TemporaryDirectory() as scratch:
            bundle = Path(scratch, BUNDLE)
            with bundle.open("wb") as out:
                copy_bytes(source, size, out)
            git(folder, "init", "-q", "--template=", "-b", BRANCH.rpartition("/")[2], environment=environment)
            refs = [f"{ref}:{ref}" for ref in (BRANCH, WORKSPACE)]
            fetch = ("fetch", "-q", "--no-tags", "--no-recurse-submodules", "--update-head-ok", str(bundle), *refs)
            git(folder, *fetch, environment=environment)
        for ref in (BRANCH, WORKSPACE):
            check_tree(folder, f"{ref}^{{commit}}", environment)
        git(folder, "read-tree", "--reset", "-u", WORKSPACE, environment=environment)
        git(folder, "reset", "-q", "--mixed", environment=environment)
        git(folder, "update-ref", "-d", WORKSPACE, environment=environment)
    except GitError as error:
        raise InputError(f"{BUNDLE}: git cannot restore the code: {error}") from error


def check_tree(root: Path, revision: str, environment: Mapping[str, str]) -> None:
    """Raise InputError if a commit holds a submodule, a link out of its folder, or a file that an archive may not."""
    listed = list(_entries(git(root, "ls-tree", "-r", "-l", "-z", "--full-tree", revision, environment=environment)))
    for mode, _, _, path in listed:
        if mode == "160000":
            raise InputError(f"{path}: a git submodule, and an archive has the code of one repository")
        if why := why_refused(path):
            raise InputError(f"{path}: {why}; remove it from the commit")
    if (total := sum(size for _, _, size, _ in listed)) > LARGEST:
        raise InputError(
            f"{BUNDLE}: holds {total / 1e9:.1f} GB of code, and an archive has {LARGEST / 1e9:.1f} at most"
        )
    links = [(path, name) for mode, name, size, path in listed if mode == "120000" and size <= _LONGEST_LINK]
    if len(links) < sum(mode == "120000" for mode, *_ in listed):
        raise InputError(f"{BUNDLE}: has a link whose target is longer than {_LONGEST_LINK} bytes")
    targets = dict(
        zip((path for path, _ in links), _blobs(root, [name for _, name in links], environment), strict=True)
    )
    for path, where in wrong_links(targets):
        raise InputError(f"{path}: a link to {targets[path]!r}, {where}; put the file itself there")


def _entries(listed: str) -> Iterator[tuple[str, str, int, str]]:
    """Read git's list of a tree: mode, name of the object, size in bytes and path of each entry."""
    for line in listed.split("\0")[:-1]:
        about, _, path = line.partition("\t")
        mode, _, name, size = about.split()
        yield mode, name, int(size) if size.isdigit() else 0, path


def _blobs(root: Path, names: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the contents of git's blobs by their names, each small."""
    command, given = ["git", "-C", str(root), "cat-file", "--batch"], "".join(f"{name}\n" for name in names).encode()
    done = subprocess.run(command, input=given, env=environment, capture_output=True, check=False) if names else None
    left = done.stdout if done else b""
    for _ in names:
        head, _, left = left.partition(b"\n")
        size = int(head.split()[2])
        yield os.fsdecode(left[:size])
        left = left[size + 1 :]
