"""Write the report: the page, the tables, the plots, and the scores for `dvc metrics`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from merganser.config.loading import PARAMS
from merganser.config.params import Params
from merganser.config.published import Published
from merganser.outputs import fresh_folder, read_json, write_json
from merganser.report import tables
from merganser.report.baselines import Baseline, read_baselines
from merganser.report.changes import Changes, read_changes, worse_scores
from merganser.report.choices import Choice, make_choices
from merganser.report.confusions import Confusions, draw_confusions, read_confusions
from merganser.report.explanation_plots import draw_explanations
from merganser.report.explanations import Explanations, find_explanations
from merganser.report.measured import Measured
from merganser.report.origin import FILE, Origin, read_origin
from merganser.report.page import render_page
from merganser.report.plots import make_plots
from merganser.report.published import Reproduced, reproduce
from merganser.report.rows import Row, make_rows
from merganser.report.scores import read_scores
from merganser.report.searches import draw_searches, read_searches
from merganser.report.significance import MEAN, Significance, on_unseen, read_significance
from merganser.report.studies import StudyResults, read_studies
from merganser.report.study_plots import draw_studies
from merganser.report.sweeps import Curve
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import (
    CODE,
    EXAMPLES,
    KEPT,
    MERGE_MEASURES,
    MERGE_PROFILES,
    METRICS,
    PREVIOUS,
    PREVIOUS_METRICS,
    PROFILES,
    PUBLISHED,
    RECORDS,
    REPORT,
    SEARCH_MEASURES,
    STUDIES,
    TASK_MEASURES,
    UNSEEN,
)

SUMMARY, PAGE = Path("metrics.json"), "index.html"


@dataclass(frozen=True)
class Content:
    """All that a report says, computed from the stages' files; `numbers`: those for `dvc metrics`."""

    rows: list[Row]
    measured: Measured
    studies: StudyResults
    significance: Significance
    unseen: Significance | None  # on the tasks without a model
    choices: list[Choice]
    baselines: list[Baseline]
    explanations: Explanations
    confusions: Confusions
    searches: dict[str, Curve]
    reproduced: list[Reproduced]
    numbers: dict[str, dict[str, Any]]


def read_content(params: Params) -> Content:
    """Compute what the report says of every declared entry on every declared task."""
    scores = read_scores(params, METRICS, MERGE_PROFILES, UNSEEN)
    rows = make_rows(params, scores, METRICS, RECORDS, PROFILES)
    of_merges = {row.entry: read_json(MERGE_MEASURES / f"{row.entry}.json") for row in rows}
    significance = read_significance(rows, EXAMPLES)
    measured, studies = Measured(read_json(TASK_MEASURES), of_merges), read_studies(params, scores, STUDIES)
    published = Published.model_validate(read_json(PUBLISHED)) if params.published else None
    return Content(
        rows=rows,
        measured=measured,
        studies=studies,
        significance=significance,
        unseen=read_significance(on_unseen(rows), UNSEEN) if params.unseen else None,
        choices=make_choices(rows, significance.pairs[MEAN]),
        baselines=read_baselines(rows[0], EXAMPLES),
        explanations=find_explanations(rows, measured, studies),
        confusions=read_confusions(rows, EXAMPLES),
        searches=read_searches(rows, SEARCH_MEASURES),
        reproduced=reproduce(published, rows, params.measured, params.parameters.matrices) if published else [],
        numbers=tables.summary(rows),
    )


def write_content(
    folder: Path,
    params: Params,
    content: Content,
    plots: Mapping[str, str],
    changes: Changes | None,
    origin: Origin | None = None,
) -> None:
    """Write a report's tables, its page and its plots into an empty folder; `origin`: whose result it is."""
    (folder / "plots").mkdir()
    tables.write_tables(folder, content.rows, params.measured, params.evaluation.partial)
    tables.write_routed(folder, content.rows)
    tables.write_unseen(folder, content.rows)
    tables.write_data_sets(folder, content.rows)
    tables.write_csv(folder / "baselines.csv", Baseline._fields, content.baselines)
    tables.write_measures(folder, content.measured)
    tables.write_studies(folder, content.studies)
    tables.write_explanations(folder, content.explanations)
    tables.write_confusions(folder, content.confusions)
    tables.write_searches(folder, content.searches)
    tables.write_significance(folder, content.significance)
    if content.unseen:
        tables.write_significance(folder, content.unseen, "unseen_")
    tables.write_choices(folder, content.choices)
    tables.write_changes(folder, changes)
    if params.published:
        tables.write_published(folder, content.reproduced)
    for name, svg in plots.items():
        (folder / "plots" / f"{name}.svg").write_text(svg)
    page = render_page(
        params,
        content.rows,
        content.measured,
        content.studies,
        content.significance,
        content.choices,
        plots,
        changes,
        content.reproduced,
        content.baselines,
        content.explanations,
        content.confusions,
        content.searches,
        content.unseen,
        origin,
    )
    if origin:
        write_json(folder / FILE, origin.as_json())
    (folder / PAGE).write_text(page)


@stage()
def main(params: Params) -> None:
    """Compare every declared entry on every declared task; write `report/` and `metrics.json`."""
    content = read_content(params)
    rows, tasks = content.rows, params.measured
    plots = make_plots(rows, content.measured, tasks) | draw_studies(content.studies, rows[0].wording)
    plots |= draw_explanations(content.explanations, content.measured) | draw_confusions(content.confusions)
    plots |= draw_searches(content.searches, rows[0].wording)
    changes = read_changes(PREVIOUS_METRICS, os.environ.get("DVCFLEET_RUN"), content.numbers)
    if changes:
        entries = [row.entry for row in rows]
        changes = replace(
            changes, worse=worse_scores(entries, list(tasks), list(params.unseen), PREVIOUS, METRICS.parent)
        )
    with fresh_folder(REPORT) as folder:
        write_content(folder, params, content, plots, changes, read_origin(PARAMS, CODE / KEPT))
    write_json(SUMMARY, content.numbers)
    print(f"{REPORT}/{PAGE}: {len(rows)} entries on {len(tasks)} tasks")


if __name__ == "__main__":
    run_main(main)
