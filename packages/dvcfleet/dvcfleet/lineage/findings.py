"""The findings of an audit."""

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """The kinds of differences from what was recorded; a project's audit has further ones of its own."""

    MISSING = "missing"
    CHANGED = "changed"
    UNKNOWN = "unknown file"
    CODE = "code changed"
    SOURCE = "source changed"
    PARAMS = "parameter changed"
    STAGE = "stage changed"
    NEVER_RAN = "never ran"
    UNDECLARED = "no longer declared"
    OUTDATED = "outdated"
    CACHE = "cache changed"
    RECORD = "record changed"
    NOT_REPRODUCED = "not reproduced"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Finding:
    """One difference from what was recorded: the file, parameter or run, the kind, and the stages concerned."""

    kind: StrEnum
    name: str
    message: str
    stages: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.name}: {self.message}"
