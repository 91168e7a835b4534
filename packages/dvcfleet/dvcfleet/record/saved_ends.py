"""Where the experiments of a repository say that a ledger ended when each was saved."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.git import git_if_any
from dvcfleet.project import project_of
from dvcfleet.record.ledger import LEDGERS, Execution, parse_execution

_TRAILER = re.compile(r"^Ledger: (\w{64}) (\w{64})$", re.M)
_IDENTITY = re.compile(r"^Identity: (.+)$", re.M)


@dataclass(frozen=True)
class SavedEnd:
    """The first and the last line of a ledger by their sha256, as an experiment names them, and its run's lines."""

    name: str
    first: str
    last: str
    lines: tuple[tuple[bytes, Execution], ...]


def saved_ends(folder: Path) -> Iterator[SavedEnd]:
    """Return what each experiment of the repository around a state folder says; none of another with its git."""
    own = project_of(folder.parent).identity(folder.parent)
    form = "--format=%(refname)%00%(objectname)%00%(contents)%00"
    fields = (git_if_any(folder.parent, "for-each-ref", form, "refs/exps") or "").split("\0")
    found = [
        (ref.strip().rpartition("/")[2], commit, trailer)
        for ref, commit, message in zip(fields[::3], fields[1::3], fields[2::3], strict=False)
        if (trailer := _TRAILER.search(message)) and identity_in(message) in ("", own)
    ]
    # A run's last line is the ledger's last one, when it is saved.
    paths = [f"{commit}:./{folder.name}/{LEDGERS}/{trailer[2]}.jsonl" for _, commit, trailer in found]
    for (name, _, trailer), text in zip(found, _texts(folder.parent, paths), strict=True):
        lines = ((line, parse_execution(line, None)) for line in text.splitlines())
        yield SavedEnd(name, trailer[1], trailer[2], tuple((line, one) for line, one in lines if one))


def identity_in(message: str) -> str:
    """Return the identity of the repository whose run an experiment is, by its message; empty if it has none."""
    found = _IDENTITY.search(message)
    return found[1] if found else ""


def _texts(root: Path, names: Sequence[str]) -> list[bytes]:
    """Return git's objects of these names, with one process; an empty text for what is not there."""
    if not names:
        return []
    command = ["git", "-C", str(root), "cat-file", "--batch"]
    out = subprocess.run(command, input="\n".join([*names, ""]).encode(), capture_output=True, check=False).stdout
    texts = []
    for _ in names:
        head, _, out = out.partition(b"\n")
        size = -1 if head.endswith(b"missing") else int(head.rpartition(b" ")[2] or -1)
        texts.append(out[: max(size, 0)])
        out = out[size + 1 :]
    return texts
