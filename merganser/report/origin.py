"""The origin of a report: time, user, machine, commit and input, and the ledger's head at that time."""

import getpass
import gzip
import hashlib
import json
import os
import socket
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from merganser.hashes import sha256_of

FILE = "origin.json"
LEDGER, OLDER = Path(".dvcfleet/ledger.jsonl"), Path(".dvcfleet/ledgers/older.jsonl.gz")


@dataclass(frozen=True)
class Origin:
    """What was known when a report was written; None for what was not.

    `written`: a time in UTC (ISO 8601). `run`: the run's name, None under `dvc repro`. `commit`: the one checked out.
    `choices`: the sha256 of the bytes of params.yaml. `lines`, `head`: how many lines the ledger had, and the sha256
    of the last one: all stages that had ended before, not the report's own line. `kept`: the stages and methods whose
    results are by an earlier version, which an update was told to keep, each with that version.
    """

    written: str
    user: str | None
    host: str
    run: str | None
    commit: str | None
    merganser: str | None
    choices: str
    lines: int
    head: str | None
    kept: tuple[str, ...] = ()

    @property
    def anchor(self) -> str | None:
        """The ledger's head in the form of `merganser lineage verify --anchored`."""
        return f"Ledger-Anchor: {self.lines} {self.head}" if self.head else None

    def as_json(self) -> dict[str, Any]:
        """Return the content of origin.json."""
        return asdict(self) | {"anchor": self.anchor}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Origin":
        """Parse the result of `as_json`; raise TypeError or AttributeError for anything else."""
        known = {name: value for name, value in content.items() if name != "anchor"}
        return cls(**known | {"kept": tuple(known.get("kept", ()))})


def read_origin(params: Path, kept: Path) -> Origin:
    """Return the origin of a report written now in the comparison's folder; `kept`: the file of kept results."""
    head = list(_line_digests())
    return Origin(
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        user=user_name(),
        host=socket.gethostname(),
        run=os.environ.get("DVCFLEET_RUN"),
        commit=commit_of(),
        merganser=merganser_version(),
        choices=sha256_of(params),
        lines=len(head),
        head=head[-1] if head else None,
        kept=tuple(kept.read_text(encoding="utf-8").splitlines()) if kept.is_file() else (),
    )


def user_name() -> str | None:
    """Return the user's name; None if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def merganser_version() -> str | None:
    """Return Merganser's version; None for a copy of its code that is not installed."""
    try:
        return version("merganser")
    except PackageNotFoundError:
        return None


def commit_of() -> str | None:
    """Return the commit that is checked out; None outside a git repository."""
    try:
        outcome = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError:
        return None
    return outcome.stdout.strip() if outcome.returncode == 0 else None


def _line_digests() -> Iterator[str]:
    """Yield the sha256 of each whole line of the repository's own ledger once, as its chain counts them."""
    seen: set[str] = set()
    for line in _lines():
        digest = hashlib.sha256(line).hexdigest()
        if digest not in seen and _is_whole(line):
            seen.add(digest)
            yield digest


def _lines() -> Iterator[bytes]:
    for path in (OLDER, LEDGER):
        with (
            suppress(FileNotFoundError, gzip.BadGzipFile, EOFError, zlib.error),
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
        ):
            yield from (line.rstrip(b"\r\n") for line in file)


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
