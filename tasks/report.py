"""Write the report: the page, the tables, the plots, and the scores for `dvc metrics`."""

import os
from pathlib import Path

from merganser.config.params import Params
from merganser.config.published import Published
from merganser.outputs import fresh_folder, read_json, write_json
from merganser.report import tables
from merganser.report.baselines import Baseline, read_baselines
from merganser.report.changes import read_changes
from merganser.report.choices import make_choices
from merganser.report.measured import Measured
from merganser.report.page import render_page
from merganser.report.plots import make_plots
from merganser.report.published import reproduce
from merganser.report.rows import make_rows
from merganser.report.scores import read_scores
from merganser.report.significance import MEAN, read_significance
from merganser.report.studies import read_studies
from merganser.report.study_plots import draw_studies
from tasks.stage import run, stage
from tasks.stages import (
    EXAMPLES,
    MERGE_MEASURES,
    MERGE_PROFILES,
    METRICS,
    PREVIOUS_METRICS,
    PROFILES,
    PUBLISHED,
    RECORDS,
    REPORT,
    STUDIES,
    TASK_MEASURES,
)

SUMMARY = Path("metrics.json")


@stage()
def main(params: Params) -> None:
    """Compare every declared entry on every declared task; write `report/` and `metrics.json`."""
    scores = read_scores(params, METRICS, MERGE_PROFILES)
    rows = make_rows(params, scores, METRICS, RECORDS, PROFILES)
    of_merges = {row.entry: read_json(MERGE_MEASURES / f"{row.entry}.json") for row in rows}
    measured = Measured(read_json(TASK_MEASURES), of_merges)
    tasks = params.measured
    studies = read_studies(params, scores, STUDIES)
    significance = read_significance(rows, EXAMPLES)
    choices = make_choices(rows, significance.pairs[MEAN])
    baselines = read_baselines(rows[0], EXAMPLES)
    plots = make_plots(rows, measured, tasks) | draw_studies(studies, rows[0].wording)
    numbers = tables.summary(rows)
    reproduced = reproduce(Published.model_validate(read_json(PUBLISHED)), rows, tasks) if params.published else []
    changes = read_changes(PREVIOUS_METRICS, os.environ.get("DVCFLEET_RUN"), numbers)
    with fresh_folder(REPORT) as folder:
        (folder / "plots").mkdir()
        tables.write_tables(folder, rows, tasks, params.evaluation.partial)
        tables.write_routed(folder, rows)
        tables.write_data_sets(folder, rows)
        tables.write_csv(folder / "baselines.csv", Baseline._fields, baselines)
        tables.write_measures(folder, measured)
        tables.write_studies(folder, studies)
        tables.write_significance(folder, significance)
        tables.write_choices(folder, choices)
        tables.write_changes(folder, changes)
        if params.published:
            tables.write_published(folder, reproduced)
        for name, svg in plots.items():
            (folder / "plots" / f"{name}.svg").write_text(svg)
        page = render_page(
            params, rows, measured, studies, significance, choices, plots, changes, reproduced, baselines
        )
        (folder / "index.html").write_text(page)
    write_json(SUMMARY, numbers)
    print(f"{REPORT}/index.html: {len(rows)} entries on {len(tasks)} tasks")


if __name__ == "__main__":
    run(main)
