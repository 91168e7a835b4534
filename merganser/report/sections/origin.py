"""The report's origin: person, time, machine and commit."""

import json

from merganser.config.loading import PARAMS
from merganser.report.comparison import Comparison
from merganser.report.origin import FILE, Origin, read_origin
from merganser.report.sections import Section


def read(comparison: Comparison) -> Origin:
    """Return the origin of a report written now."""
    return read_origin(PARAMS, comparison.paths.CODE / comparison.paths.KEPT)


SECTION = Section(read=read, tables=lambda origin: {FILE: json.dumps(origin.as_json(), indent=2) + "\n"})
