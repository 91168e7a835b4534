"""The ledger's chain: each line names the one before by its sha256, so that a line gone, moved, edited or added shows.

Other files record the end of the chain: without them, lines missing at the end, or a chain computed again, would not
show. `synced` names the last line of the last sync, a saved experiment the first and the last one of then
(`end_of`), and an anchor that the user keeps elsewhere the last one and its place. The experiment holds its run's lines
too (`record_files`), which `dvc exp apply` puts among the other ledgers.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dvcfleet.crash_recovery import SYNCED, synced_ledger_end
from dvcfleet.errors import UserError, some
from dvcfleet.git import git_if_any
from dvcfleet.project import project_of
from dvcfleet.record.environments import environment_file, sha256
from dvcfleet.record.ledger import (
    BEGIN,
    LEDGER,
    LEDGERS,
    Execution,
    newest_first,
    other_ledgers,
    own_lines,
    parse_execution,
    sound_lines,
)

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
    """Return the ledger ends in this repository's experiments, for a state folder; none of another repository's."""
    own = project_of(folder.parent).identity(folder.parent)
    form = "--format=%(refname)%00%(objectname)%00%(contents)%00"
    fields = (git_if_any(folder.parent, "for-each-ref", form, "refs/exps") or "").split("\0")
    commits = [
        (ref.strip().rpartition("/")[2], commit, trailer)
        for ref, commit, message in zip(fields[::3], fields[1::3], fields[2::3], strict=False)
        if (trailer := _TRAILER.search(message)) and identity_in(message) in ("", own)
    ]
    # A run's last line is the ledger's last one, when it is saved.
    paths = [f"{commit}:./{folder.name}/{LEDGERS}/{trailer[2]}.jsonl" for _, commit, trailer in commits]
    for (name, _, trailer), text in zip(commits, _texts(folder.parent, paths), strict=True):
        lines = ((line, parse_execution(line, None)) for line in text.splitlines())
        yield SavedEnd(name, trailer[1], trailer[2], tuple((line, one) for line, one in lines if one))


def identity_in(message: str) -> str:
    """Return the identity of the repository of an experiment, by its message; empty if it has none."""
    match = _IDENTITY.search(message)
    return match[1] if match else ""


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


_DIGEST = re.compile("[0-9a-f]{64}")
_ANCHOR = re.compile(r"Ledger-Anchor: (\d+) ([0-9a-f]{64})\b")
# What no line without `before` has: versions that wrote these chained all lines.
_SINCE_CHAINS = frozenset({"user", "changes", "was", "why", "unproven", "identity"})


@dataclass(frozen=True)
class Chain:
    """The state of a ledger: its lines, those older than chains, faults, and experiments whose ledger is not here."""

    lines: int
    older: int
    faults: tuple[str, ...]
    elsewhere: int = 0


@dataclass(frozen=True)
class Anchor:
    """The head of a ledger at some time: how many lines it had, and the sha256 of the last one."""

    count: int
    digest: str

    def __str__(self) -> str:
        return f"Ledger-Anchor: {self.count} {self.digest}"


@dataclass
class _Followed:
    """The state while a chain is followed: its lines' digests, runs and moments, and faults."""

    last: str | None
    seen: dict[str, None] = field(default_factory=dict)
    known: set[str | tuple[str, str]] = field(default_factory=set)
    older: int = 0
    faults: list[str] = field(default_factory=list)


def anchor_of(folder: Path) -> Anchor:
    """Return the head of the repository's own ledger; raise UserError if it has no line, or its chain is broken."""
    if faults := check_chains(folder)[folder / LEDGER].faults:
        raise UserError(f"not anchored: {LEDGER}: {faults[0]}; see `lineage verify`")
    seen = _follow(own_lines(folder), BEGIN).seen
    if not seen:
        raise UserError("the ledger has no line yet: nothing was run here")
    return Anchor(len(seen), list(seen)[-1])


def parse_anchor(text: str) -> Anchor:
    """Find an anchor in a text such as a commit message; raise UserError if there is none."""
    match = _ANCHOR.search(text)
    if not match:
        raise UserError(f"{text!r} holds no anchor: it looks like {Anchor(37, '9f86d08...')}, of `lineage anchor`")
    return Anchor(int(match[1]), match[2])


def end_of(folder: Path) -> str:
    """Return the trailer of a commit with the ledger's current beginning and end; empty without lines."""
    first = next((line for line, _ in own_lines(folder)), None)
    last = next((line for line, _ in newest_first(folder)), None)
    return f"Ledger: {sha256(first)} {sha256(last)}" if first and last else ""


def record_files(folder: Path, run: str) -> dict[str, str]:
    """Return an experiment's record of its run, by path in a state folder: its lines, and their environments."""
    own = {line: execution for line, execution in sound_lines(folder / LEDGER) if execution.run == run}
    if not own:
        return {}
    lines = {f"{LEDGERS}/{sha256(list(own)[-1])}.jsonl": "".join(line.decode() + "\n" for line in own)}
    described = {environment_file(folder, each.environment) for each in own.values()}
    return lines | {
        os.path.relpath(path, folder): path.read_text(encoding="utf-8") for path in described if path.is_file()
    }


def check_chains(folder: Path, anchor: Anchor | None = None) -> dict[Path, Chain]:
    """Follow the chain of each ledger from its first line, and to where other files saw it end.

    The repository's own begins in the file of older lines, if there is one; `anchor` is of it. Another ledger may begin
    anywhere: what an experiment holds are the lines of one run. Its name says how it ends.
    """
    others = {path: _follow(sound_lines(path), None) for path in other_ledgers(folder)}
    own, saved = _follow(own_lines(folder), BEGIN), list(saved_ends(folder))
    own.faults += [*_unlike_synced(folder, own), *_unlike_saved(own, saved), *_unlike_anchor(own, anchor)]
    for path, chain in others.items():
        if _DIGEST.fullmatch(path.stem) and path.stem != chain.last:
            chain.faults.append("it does not end with the line that its name says")
    there = own.seen.keys() | {digest for chain in others.values() for digest in chain.seen}
    elsewhere = sum(end.last not in there and not _is_of(end, own) for end in saved)
    ledgers = {folder / LEDGER: own, **others}
    return {
        path: Chain(len(chain.seen), chain.older, tuple(chain.faults), elsewhere if chain is own else 0)
        for path, chain in ledgers.items()
    }


def _follow(lines: Iterable[tuple[bytes, Execution]], begin: str | None) -> _Followed:
    """Follow one chain from the digest that its first line names; None: any."""
    followed = _Followed(begin)
    for line, execution in lines:
        digest = sha256(line)
        if digest in followed.seen:  # written again after a full disk had cut off the lines after it
            continue
        if fault := _fault_of(line, execution, followed):
            place = f"the line of {execution.stage} that began {execution.began}"
            followed.faults.append(f"{place} {fault}")
        followed.older += execution.before is None
        followed.seen[digest] = None
        followed.known |= _marks_of(execution)
        followed.last = digest
    return followed


def _fault_of(line: bytes, execution: Execution, followed: _Followed) -> str | None:
    """Return what is wrong with a line after the followed ones."""
    if execution.before is None:
        is_chained = followed.older < len(followed.seen) or _SINCE_CHAINS.intersection(json.loads(line))
        return "names no line before it: it was added or edited" if is_chained else None
    if execution.before != (followed.last or execution.before):
        return "does not follow the one before it: lines were removed, moved, edited or added"
    return None


def _marks_of(execution: Execution) -> set[str | tuple[str, str]]:
    """Return values that identify a line even after an edit: Prefect's flow run, and the start of its stage."""
    return {(execution.stage, execution.began), *filter(None, [execution.flow_run])}


def _is_of(end: SavedEnd, own: _Followed) -> bool:
    """Tell whether an experiment was saved here: its ledger begins as ours, or has a line or a run of ours."""
    marks = {mark for _, execution in end.lines for mark in _marks_of(execution)}
    is_first = end.first == next(iter(own.seen), None)
    return is_first or not marks.isdisjoint(own.known) or any(sha256(line) in own.seen for line, _ in end.lines)


def _unlike_synced(folder: Path, own: _Followed) -> Iterator[str]:
    end = synced_ledger_end(folder)
    if end and end not in own.seen:
        yield f"it lacks the line with which it ended when a run last wrote dvc.lock, as {folder.name}/{SYNCED} says"


def _unlike_saved(own: _Followed, saved: Sequence[SavedEnd]) -> Iterator[str]:
    names = [end.name for end in saved if end.last not in own.seen and _is_of(end, own)]
    if names:
        yield f"it lacks the line with which it ended when the experiment {some(names)} was saved"


def _unlike_anchor(own: _Followed, anchor: Anchor | None) -> Iterator[str]:
    if anchor and list(own.seen)[anchor.count - 1 : anchor.count] != [anchor.digest]:
        yield f"its line {anchor.count} is not the anchored one: lines up to it were removed, moved, edited or added"
