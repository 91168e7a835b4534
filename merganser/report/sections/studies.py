"""The studies: all their numbers in one file, and their places on the page."""

import json
from typing import Any

from merganser.report.comparison import Comparison
from merganser.report.sections import Section, sections


def read(comparison: Comparison) -> dict[str, Any]:
    """Return all numbers as plain data, by the studies' names."""
    studies = {name.removeprefix("study_"): each for name, each in sections().items()}
    read_numbers = {name: each.numbers(comparison.of(each.read)) for name, each in studies.items() if each.numbers}
    return {name: numbers for name, numbers in read_numbers.items() if numbers is not None}  # as without a newer study


SECTION = Section(read=read, tables=lambda found: {"studies.json": json.dumps(found, indent=2) + "\n"})
