"""Repeat computations of other code with this process's code, as for an archive of another version."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.errors import FailedError, some
from dvcfleet.lineage.steps import Finding
from merganser.code_digest import ROOT
from merganser.flows.evidence.findings import DifferenceKind
from merganser.flows.steps.updating import new_record
from merganser.tasks.code_record import RECORD, other_code, read_record

_NAMED = 3


@dataclass(frozen=True)
class OwnCode:
    """The files of packages in which the repository's code differs from this process's."""

    differing: tuple[str, ...]

    def compared(self, what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
        """Return a check's findings; if there are any and the code differs, one that it could not be compared."""
        if not self.differing:
            return list(check())
        try:
            findings = list(check())
        except FailedError:
            raise
        except Exception as error:  # whatever code says of files of another version
            return [self._not_compared(what, f"{type(error).__name__}: {error}")]
        return [self._not_compared(what, "; ".join(map(str, findings[:_NAMED])))] if findings else []

    def _not_compared(self, what: str, why: str) -> Finding:
        cure = "compare it with the repository's own code, in a separate environment"
        message = f"this Merganser has other code than {some(self.differing)} here, and by it differs: {why}; {cure}"
        return Finding(DifferenceKind.NOT_COMPARED, what, message)


def own_code() -> OwnCode:
    """Compare the packages in the current folder, or the record of a comparison's code, with this process's."""
    if RECORD.is_file():
        other = other_code(read_record(Path()), new_record())
        return OwnCode(tuple(name.removesuffix(".txt") for name in other))
    differing = []
    for own in (ROOT / "merganser", ROOT / "tasks"):
        here = Path(own.name)
        if here.is_dir() and here.samefile(own):
            continue
        names = {path.relative_to(folder) for folder in (own, here) for path in _code(folder)}
        differing += [str(here / name) for name in sorted(names) if _content(own / name) != _content(here / name)]
    return OwnCode(tuple(differing))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _code(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
