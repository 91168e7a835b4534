"""The studies' numbers as CSV, for people and for `dvc plots`, and as JSON."""

import json
from pathlib import Path

from merganser.report.studies import Point, RankPoint, StudyResults, Summary
from merganser.report.tables import write_csv


def write_studies(folder: Path, results: StudyResults) -> None:
    """Write `studies.json` and, of what was studied, `plots/study_tasks.csv`, `study_sizes.csv`, `study_rank.csv`."""
    (folder / "studies.json").write_text(json.dumps(results.as_json(), indent=2) + "\n")
    if results.points:
        lines = [[*p[:2], "+".join(p.subset), *p[3:]] for p in results.points]
        write_csv(folder / "plots/study_tasks.csv", Point._fields, lines)
        write_csv(folder / "plots/study_sizes.csv", Summary._fields, results.summaries)
    if results.ranks:
        write_csv(folder / "plots/study_rank.csv", RankPoint._fields, results.ranks)
