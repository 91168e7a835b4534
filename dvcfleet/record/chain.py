"""The ledger's chain: each line names the one before by its sha256, so that a line gone, moved, edited or added shows.

Where the chain ends, a saved experiment says (`end_of`): without it, lines that are missing at the end would not show.
The experiment holds its run's lines too (`files_of`), which `dvc exp apply` puts among the other ledgers.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.git import git_if_any
from dvcfleet.record.environments import environment_file
from dvcfleet.record.kept import sha256
from dvcfleet.record.ledger import BEGIN, LEDGER, LEDGERS, Execution, other_ledgers, own_lines, sound_lines

_TRAILER = re.compile(r"^Ledger: (\w{64}) (\w{64})$", re.M)
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Chain:
    """The state of a ledger: how many lines it has, how many are older than chains, and what is wrong with it."""

    lines: int
    older: int
    faults: tuple[str, ...]


def end_of(folder: Path) -> str:
    """Return the trailer of a commit that says where a ledger begins and ends now; empty if there is no line."""
    lines = [line for line, _ in sound_lines(folder / LEDGER)]
    first = next((line for line, _ in own_lines(folder)), None)
    return f"Ledger: {sha256(first)} {sha256(lines[-1])}" if first and lines else ""


def files_of(folder: Path, run: str) -> dict[str, str]:
    """Return what an experiment holds of its run, by path in a state folder: its lines, and their environments."""
    found = {line: execution for line, execution in sound_lines(folder / LEDGER) if execution.run == run}
    if not found:
        return {}
    lines = {f"{LEDGERS}/{sha256(list(found)[-1])}.jsonl": "".join(line.decode() + "\n" for line in found)}
    described = {environment_file(folder, each.environment) for each in found.values()}
    return lines | {os.path.relpath(path, folder): path.read_text() for path in described if path.is_file()}


def check_chains(folder: Path) -> dict[Path, Chain]:
    """Follow the chain of each ledger from its first line, and to where the repository's experiments saw it end.

    The repository's own begins in the file of older lines, if there is one.

    Another ledger may begin anywhere: what an experiment holds are the lines of one run. Its name says how it ends.
    """
    others = {path: _check(path, sound_lines(path), None, ()) for path in other_ledgers(folder)}
    return {folder / LEDGER: _check(folder / LEDGER, own_lines(folder), BEGIN, list(_ends(folder))), **others}


def _check(
    path: Path, lines: Iterable[tuple[bytes, Execution]], begin: str | None, ends: Sequence[tuple[str, str, str]]
) -> Chain:
    """Follow one chain from what its first line is to name; None: whatever it names."""
    seen: dict[str, None] = {}
    last, older, faults = begin, 0, []
    for line, execution in lines:
        digest = sha256(line)
        if digest in seen:  # written again after a full disk had cut off the lines after it
            continue
        place = f"the line of {execution.stage} that began {execution.began}"
        if execution.before is None and older < len(seen):
            faults.append(f"{place} names no line before it: it was added or edited")
        elif execution.before is None:
            older += 1
        elif execution.before != (last or execution.before):
            faults.append(f"{place} does not follow the one before it: lines were removed, moved, edited or added")
        seen[digest] = None
        last = digest
    first = next(iter(seen), None)
    faults += [
        f"it lacks the line with which it ended when the experiment {name} was saved"
        for name, own_first, end in ends
        if end not in seen and own_first == first
    ]
    if _DIGEST.fullmatch(path.stem) and path.stem != last:
        faults.append("it does not end with the line that its name says")
    return Chain(len(seen), older, tuple(faults))


def _ends(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Return of each experiment its name, and the first and the last line of the ledger when it was saved."""
    listed = git_if_any(folder.parent, "for-each-ref", "--format=%(refname)%00%(contents)%00", "refs/exps") or ""
    fields = listed.split("\0")
    for name, message in zip(fields[::2], fields[1::2], strict=False):
        found = _TRAILER.search(message)
        if found:
            yield name.strip().rpartition("/")[2], found[1], found[2]
