"""The studies: all their numbers in one file, and the place of each on the page."""

import json
from typing import Any

from merganser.report.comparison import Comparison
from merganser.report.sections import Section, study_ablations, study_budgets, study_rank, study_sweeps, study_tasks


def read(comparison: Comparison) -> dict[str, Any]:
    """Return all numbers as plain data."""
    tasks = comparison.of(study_tasks.read) or study_tasks.SubsetResults([], [])
    rank = comparison.of(study_rank.read) or study_rank.RankResults([])
    budgets = comparison.of(study_budgets.read) or study_budgets.Matched({}, {}, {})
    return {
        "tasks": tasks.as_json(),
        "rank": rank.as_json(),
        "sweeps": {curve.name: curve.as_json() for curve in comparison.of(study_sweeps.read) or ()},
        "ablations": {each.name: each.as_json() for each in comparison.of(study_ablations.read) or ()},
        "budgets": budgets.as_json(),
    }


SECTION = Section(read=read, tables=lambda found: {"studies.json": json.dumps(found, indent=2) + "\n"})
