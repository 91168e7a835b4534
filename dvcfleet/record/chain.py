"""The ledger's chain: each line names the one before by its sha256, so that a line gone, moved, edited or added shows.

Where the chain ends, a saved experiment says (`end_of`): without it, lines that are missing at the end would not show.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.git import git_if_any
from dvcfleet.record.ledger import BEGIN, LEDGER, digest_of, sound_lines

_TRAILER = re.compile(r"^Ledger: (\w{64}) (\w{64})$", re.M)


@dataclass(frozen=True)
class Chain:
    """The state of a ledger: how many lines it has, how many are older than chains, and what is wrong with it."""

    lines: int
    older: int
    faults: tuple[str, ...]


def end_of(folder: Path) -> str:
    """Return the trailer of a commit that says where a ledger begins and ends now; empty if there is no line."""
    digests = [digest_of(line) for line, _ in sound_lines(folder / LEDGER)]
    return f"Ledger: {digests[0]} {digests[-1]}" if digests else ""


def check_chain(folder: Path) -> Chain:
    """Follow the ledger's chain from its first line, and to where the repository's experiments saw it end."""
    seen: dict[str, None] = {}
    last, older, faults = BEGIN, 0, []
    for line, execution in sound_lines(folder / LEDGER):
        digest = digest_of(line)
        if digest in seen:  # written again after a full disk had cut off the lines after it
            continue
        place = f"the line of {execution.stage} that began {execution.began}"
        if execution.before is None and older < len(seen):
            faults.append(f"{place} names no line before it: it was added or edited")
        elif execution.before is None:
            older += 1
        elif execution.before != last:
            faults.append(f"{place} does not follow the one before it: lines were removed, moved, edited or added")
        seen[digest] = None
        last = digest
    ends = [name for name, end in _ends(folder, next(iter(seen), None)) if end not in seen]
    faults += [f"it lacks the line with which it ended when {name} was saved" for name in ends]
    return Chain(len(seen), older, tuple(faults))


def _ends(folder: Path, first: str | None) -> Iterator[tuple[str, str]]:
    """Return which line was the last when each experiment was saved with the ledger that has this first line."""
    listed = git_if_any(folder.parent, "for-each-ref", "--format=%(refname)%00%(contents)%00", "refs/exps") or ""
    fields = listed.split("\0")
    for name, message in zip(fields[::2], fields[1::2], strict=False):
        found = _TRAILER.search(message)
        if found and found[1] == first:
            yield f"the experiment {name.strip().rpartition('/')[2]}", found[2]
