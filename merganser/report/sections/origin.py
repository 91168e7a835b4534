"""Whose result the report is."""

from pathlib import Path
from typing import Any

from merganser.config.loading import PARAMS
from merganser.outputs import write_json
from merganser.report.comparison import Comparison
from merganser.report.origin import FILE, Origin, read_origin
from merganser.report.sections import Section


def read(comparison: Comparison) -> Origin | None:
    """Read whose result is written now."""
    return read_origin(PARAMS, comparison.paths.CODE / comparison.paths.KEPT)


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `origin.json`."""
    if origin := comparison.of(read):
        write_json(folder / FILE, origin.as_json())


def page(comparison: Comparison) -> dict[str, Any] | None:
    """Return the origin; None where it is not known."""
    origin = comparison.of(read)
    return {"origin": origin} if origin else None


SECTION = Section(page=page, tables=tables)
