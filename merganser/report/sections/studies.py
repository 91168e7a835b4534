"""The studies: all their numbers in one file, and the place of each on the page."""

import json
from pathlib import Path

from merganser.report.comparison import Comparison
from merganser.report.sections import Section, study_ablations, study_budgets, study_rank, study_sweeps, study_tasks


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `studies.json`."""
    found = {
        "tasks": comparison.of(study_tasks.read).as_json(),
        "rank": comparison.of(study_rank.read).as_json(),
        "sweeps": {curve.name: curve.as_json() for curve in comparison.of(study_sweeps.read)},
        "ablations": {each.name: each.as_json() for each in comparison.of(study_ablations.read)},
        "budgets": comparison.of(study_budgets.read).as_json(),
    }
    (folder / "studies.json").write_text(json.dumps(found, indent=2) + "\n")


SECTION = Section(tables=tables)
