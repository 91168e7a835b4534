import csv
import getpass
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml
from markupsafe import escape
from mlflow import MlflowClient
from scipy.stats import binomtest, pearsonr, spearmanr

import merganser
from dvcfleet.messages import Ending, Result
from dvcfleet.record.chain import anchor_of
from dvcfleet.record.ledger import Ledger
from merganser import registry
from merganser.config.sections import TAKEN_COLUMNS
from merganser.errors import InputError
from merganser.evaluation.examples import read_results, write_results
from merganser.flows.pages.reproduced import figure_lines, read_figures
from merganser.flows.steps.answer import report_lines
from merganser.inputs.deltas import open_deltas
from merganser.report.formats import BUDGETS, by_depth, digits, panels, short_names, write_tables
from merganser.report.glossary import TERMS
from merganser.report.origin import read_origin
from merganser.report.plots import LABEL_HEIGHT, VARIABLES, place_labels, spread
from merganser.report.sections import explanations, published, study_tasks
from merganser.report.sections.bounds import CLAIMS
from merganser.report.sections.explanations.points import find_points
from merganser.report.sections.scores import IDENTITY
from merganser.standalone.results import TEXTS
from merganser.tasks import evaluate_unseen, fetch_head, prepare_unseen, publish, record, report
from tests.tasks.comparison import (
    METHODS,
    PLOTS,
    STUDIES,
    TASKS,
    inside,
    open_comparison,
    plots_of,
    report_without_plots,
)
from tests.tiny_clip import write_data_set

TABLES = {
    *("scores.csv", "cost.csv", "study_tasks.csv", "study_sizes.csv", "study_rank.csv"),
    *("layers.csv", "cosines.csv", "alignment.csv", "errors.csv"),
}
UNSEEN = {"held": {"data": {"source": "sources/held-data", "templates": ["a {} image."]}}}
PUBLISHED: dict[str, Any] = {
    "tasks": list(TASKS),
    "tables": [
        {
            "paper": "A paper & others",
            "table": "Table 1",
            "protocol": "accuracy on the test split",
            "checkpoints": "others",
            "decimals": 1,
            "columns": ["mean", "dark"],
            "rows": {"sum": [100.0, None], "average": [99.5, 50.0], "emr": [1.0, 2.0]},
            "parameters": {"sum": {"scaling": 0.4}},
        }
    ],
}


@pytest.fixture(scope="module")
def folder(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a comparison that has been recorded and reported, and work in it."""
    made = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("report") / "comparison"))
    params = yaml.safe_load((made / "params.yaml").read_text())
    (made / "params.yaml").write_text(
        yaml.safe_dump(params | {"published": {"source": "published.yaml"}, "unseen": UNSEEN}, sort_keys=False)
    )
    write_data_set(made / "sources/held-data", {"test": 10})
    (made / "published.yaml").write_text(yaml.safe_dump(PUBLISHED))
    with inside(made):
        publish.main([])
        fetch_head.main(["held"])
        prepare_unseen.main(["held"])
        for entry in METHODS:
            evaluate_unseen.main([entry, "held"])
            record.main([entry])
        report.main([])
        yield made


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report/index.html").read_text()


def test_of_many_entries_the_page_ranks_all_and_shows_the_best(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("merganser.report.comparison.MANY", 2)
    monkeypatch.setattr("merganser.report.paired.MANY", 2)
    comparison = open_comparison()
    fewer = plots_of(comparison, "glance", "scores", "retained")  # the others draw as many entries as ever
    report.write_report(tmp_path, comparison, dict.fromkeys(PLOTS, "<svg></svg>") | fewer)
    text = (tmp_path / "index.html").read_text()
    best = sorted((row for row in comparison.rows if row.group != "reference"), key=lambda row: -row.scores.mean)[:2]
    references = {row.entry for row in comparison.rows if row.group == "reference"}
    assert set(re.findall(r'<article id="entry-([^"]+)"', text)) == references | {row.entry for row in best}
    ranking = text[text.index('<section id="ranking">') :].partition("</table>")[0]
    assert ranking.count('<th scope="row"') == len(METHODS)
    assert f"the best of these {len(METHODS)} entries" in text
    assert set(re.findall(r'href="#entry-([^"]+)"', text)) <= references | {row.entry for row in comparison.rows}
    assert len(list(csv.DictReader((tmp_path / "results.csv").open()))) == len(METHODS)
    pairs = merganser.open_report(tmp_path).pairs
    assert set(pairs["column"]) == {"mean"}
    assert len(pairs) == len(METHODS) * (len(METHODS) - 1) / 2
    assert not (tmp_path / "pairs.csv").exists()


def test_a_users_matplotlibrc_changes_no_plot(folder: Path) -> None:
    with matplotlib.rc_context({"lines.linewidth": 7, "axes.grid": True, "text.usetex": True}):
        drawn = plots_of(open_comparison(), "glance")
    assert drawn == {name: (folder / f"report/plots/{name}.svg").read_text() for name in drawn}


class Links(HTMLParser):
    """Collect what a page loads or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [
            value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "data", "srcset")
        ]


def links(page: str) -> list[str]:
    parser = Links()
    parser.feed(page)
    return parser.targets


def test_the_page_loads_nothing_from_anywhere(page: str) -> None:
    assert "://" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "<link" not in page
    assert "<script src" not in page


def test_every_link_leads_to_a_file_or_a_place_in_the_page(folder: Path, page: str) -> None:
    places = set(re.findall(r'\bid="([^"]+)"', page))
    for target in links(page):
        if target.startswith("#"):
            assert target[1:] in places
        else:
            assert (folder / "report" / target).is_file()


def test_the_table_shows_every_score_and_leads_to_its_file(folder: Path, page: str) -> None:
    for entry in METHODS:
        for task in TASKS:
            value = json.loads((folder / f"data/metrics/{entry}/{task}.json").read_text())["value"]
            cell = re.search(rf'<a href="\.\./data/metrics/{entry}/{task}\.json"[^>]*>([\d.]+)</a>', page)
            assert cell
            assert cell[1] == f"{100 * value:.1f}"


def test_unseen_tasks_have_columns_of_their_own_and_are_in_no_mean(folder: Path, page: str) -> None:
    results = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    numbers = json.loads((folder / "data/scores.json").read_text())
    for entry, row in results.items():
        score = json.loads((folder / f"data/measures/unseen/{entry}/held.json").read_text())
        assert float(row["unseen"]) == float(row["unseen_held"]) == score["value"]
        assert float(row["mean"]) == pytest.approx(sum(float(row[task]) for task in TASKS) / len(TASKS))
        assert numbers[entry]["unseen"] == {"accuracy": {"held": score["value"]}}
    lines = {row["entry"]: row for row in csv.DictReader((folder / "report/unseen.csv").open())}
    assert {entry for entry, line in lines.items() if line["oracle_task"]} == {"tsv_c", "individual"}
    assert 'id="unseen"' in page


@pytest.mark.usefixtures("page")
def test_no_task_can_have_the_name_of_another_column(folder: Path) -> None:
    header = next(csv.reader((folder / "report/results.csv").open()))
    assert set(header) - TAKEN_COLUMNS == {*TASKS, "unseen_held"}


def test_entries_are_tested_on_unseen_tasks_example_by_example_and_apart_from_the_others(
    folder: Path, page: str
) -> None:
    pairs = list(csv.DictReader((folder / "report/unseen_pairs.csv").open()))
    assert {line["column"] for line in pairs} == {"mean", "held"}
    assert len(pairs) == 2 * len(METHODS) * (len(METHODS) - 1) // 2
    for line in pairs:
        files = [folder / f"data/measures/unseen/{line[name]}/held.safetensors" for name in ("entry", "other")]
        one, other = (read_results(file).score for file in files)
        assert one is not None
        assert other is not None
        wins, losses = int((one > other).sum()), int((one < other).sum())
        assert float(line["difference"]) == pytest.approx((wins - losses) / len(one))
        if line["column"] == "held":
            assert float(line["p"]) == pytest.approx(binomtest(wins, wins + losses).pvalue if wins + losses else 1)
    verdict = next(csv.DictReader((folder / "report/unseen_significance.csv").open()))
    bodies = dict(rows_of(page, "scores unseen"))
    marked = re.search(r'class="mean( best| tied)?"', bodies[verdict["entry"]])
    assert marked
    assert bool(marked[1]) == (float(verdict["corrected"]) >= 0.05)
    assert "best" in bodies[verdict["best"]]
    error = json.loads((folder / "data/measures/unseen/base/held.json").read_text())["stderr"]
    assert f"± {100 * error:.1f}</small>" in bodies["base"]


def test_scores_on_unseen_tasks_are_metrics_of_an_entrys_run(folder: Path) -> None:
    record.main(["--report"])
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    for entry in METHODS:
        score = json.loads((folder / f"data/measures/unseen/{entry}/held.json").read_text())
        receipt = json.loads((folder / f"data/records/{entry}.json").read_text())
        metrics = client.get_run(receipt["run_id"]).data.metrics
        assert metrics["unseen_mean"] == metrics["unseen_accuracy/held"] == score["value"]
        assert metrics["unseen_mean_stderr"] == metrics["unseen_accuracy_stderr/held"] == score["stderr"]


def rows_of(page: str, table: str) -> list[tuple[str, str]]:
    """Return each entry of one of the page's tables, and its row."""
    (found,) = re.findall(rf'<table class="sortable {table}".*?</table>', page, flags=re.S)
    return re.findall(r'<th scope="row"[^>]*><a href="#entry-(\w+)">(.*?)</tr>', found, flags=re.S)


def test_the_best_of_a_group_is_marked_and_references_never_are(folder: Path, page: str) -> None:
    marked = {entry for entry, body in rows_of(page, "scores") if 'mean best"' in body}
    means = {row["entry"]: float(row["mean"]) for row in csv.DictReader((folder / "report/results.csv").open())}
    single = max(means["average"], means["sum"])
    assert marked == {"tsv_c"} | {entry for entry in ("average", "sum") if means[entry] == single}


def test_entries_are_tested_against_the_best_of_their_group_example_by_example(folder: Path, page: str) -> None:
    found = list(csv.DictReader((folder / "report/significance.csv").open()))
    assert {row["group"] for row in found} == {"single"}  # of parts per task there is one entry
    assert [row["column"] for row in found] == ["mean", *sorted(TASKS)]
    metrics = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    for row in found:
        assert float(row["difference"]) == pytest.approx(
            float(metrics[row["entry"]][row["column"]]) - float(metrics[row["best"]][row["column"]])
        )
        assert float(row["difference"]) <= 0
        assert row["p"] == row["corrected"]  # one test a column
        if row["column"] == "mean":
            continue
        files = [folder / f"data/examples/{row[name]}/{row['column']}.safetensors" for name in ("entry", "best")]
        other, best = (read_results(file).score for file in files)
        assert other is not None
        assert best is not None
        wins, losses = int((other > best).sum()), int((other < best).sum())
        p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert float(row["p"]) == pytest.approx(p)
    mean = found[0]
    tied = {entry for entry, body in rows_of(page, "scores") if 'class="mean tied' in body}
    assert tied == ({mean["entry"]} if float(mean["corrected"]) >= 0.05 else set())
    pairs = list(csv.DictReader((folder / "report/pairs.csv").open()))
    assert len(pairs) == (1 + len(TASKS)) * len(METHODS) * (len(METHODS) - 1) // 2


def test_what_to_take_is_said_alike_by_the_page_the_table_and_the_command_line(folder: Path, page: str) -> None:
    (section,) = re.findall(r'<section id="take">.*?</section>', page, flags=re.S)
    cards = [re.findall(r'href="#entry-(\w+)"', card) for card in section.split('<div class="card">')[1:]]
    lines = list(csv.DictReader((folder / "report/choices.csv").open()))
    by_budget = [[row["entry"] for row in lines if row["budget"] == budget.key] for budget in BUDGETS]
    assert len(cards) == len(BUDGETS)
    for budget, named, members, said in zip(BUDGETS, cards, by_budget, list(report_lines(folder))[1:], strict=False):
        more = members != by_budget[BUDGETS.index(budget) - 1] or budget is BUDGETS[0]
        assert named == (members if more else [])
        assert said.startswith(f"  {budget.title} ")
        assert (members[0] in said) == more
    ranked = [
        (entry, float(re.findall(r'class="mean"[^>]*>([\d.]+)', row)[0])) for entry, row in rows_of(page, "ranking")
    ]
    assert {entry for entry, _ in ranked} == set(METHODS)
    assert [mean for _, mean in ranked] == sorted((mean for _, mean in ranked), reverse=True)


def test_the_page_and_a_table_say_what_chance_and_the_majority_give(folder: Path, page: str) -> None:
    with (folder / "report/baselines.csv").open() as file:
        lines = {line["task"]: line for line in csv.DictReader(file)}
    assert list(lines) == list(TASKS)
    for task, line in lines.items():
        labels = read_results(folder / f"data/examples/{next(iter(METHODS))}/{task}.safetensors").label
        assert labels is not None
        shares = [(labels == each).mean() for each in set(labels.tolist())]
        assert float(line["majority"]) == pytest.approx(max(shares))
        assert float(line["chance"]) == pytest.approx(1 / len(shares))
    row = next(line for line in page.splitlines() if 'class="muted"' in line and "term-majority" in line)
    assert all(f">{100 * float(line['majority']):.1f}</td>" in row for line in lines.values())


def sentences(page: str) -> list[str]:
    """The sentences of a page, of five words or more; what stands in another box begins another sentence."""
    text = re.sub(r"<(style|script|svg|math)\b.*?</\1>", " ", page, flags=re.S)
    boxes = r"</?(?:p|div|li|t[dhr]|h\d|section|summary|d[dt]|article|figcaption|table|header|nav|aside|footer)\b[^>]*>"
    found = [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", box)).strip() for box in re.split(boxes, text)]
    return [each for box in found for each in re.split(r"(?<=[.!?:]) ", box) if len(each.split()) >= 5]


def test_no_sentence_stands_twice_on_the_page_and_no_definition_in_a_caption(page: str) -> None:
    prose = page[: page.index('id="entries"')] + page[page.index('id="terms"') :]
    found = [each for each in sentences(prose) if not each.startswith("one model")]
    assert len(found) > 50
    assert [each for each in set(found) if found.count(each) > 1] == []
    terms = {term.text.split(";")[0].rstrip(".") for term in TERMS.values()}
    assert [term for term in terms if sum(term in each for each in found) > 1] == []


def test_the_first_number_of_a_row_is_its_mean(folder: Path, page: str) -> None:
    means = {row["entry"]: float(row["mean"]) for row in csv.DictReader((folder / "report/results.csv").open())}
    for table in ("ranking", "scores"):
        for entry, row in rows_of(page, table):
            assert re.findall(r"<td[^>]*>([\d.]+)", row)[0] == f"{100 * means[entry]:.1f}"


def test_every_term_of_the_page_is_explained_in_its_list(page: str) -> None:
    explained = set(re.findall(r'popover id="([\w-]+)"', page))
    used = set(re.findall(r'popovertarget="([\w-]+)"', page))
    assert used <= explained == {f"term-{key}" for key in TERMS}
    assert len(used) > 10


def test_every_table_scrolls_in_a_box_of_its_own(page: str) -> None:
    assert page.count("<table") == len(re.findall(r'<div class="scroll">(?:(?!</div>).)*?<table', page, flags=re.S)) + 1


def test_what_a_paper_reports_stands_beside_what_was_measured(folder: Path, page: str) -> None:
    (section,) = re.findall(r'<section id="published".*?</section>', page, flags=re.S)
    lines = list(csv.DictReader((folder / "report/published.csv").open()))
    assert {(line["entry"], line["column"]) for line in lines} == {
        ("sum", "mean"),
        ("average", "mean"),
        ("average", "dark"),
    }
    results = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    for line in lines:
        ours = float(results[line["entry"]][line["column"]])
        assert float(line["ours"]) == ours
        assert float(line["difference"]) == pytest.approx(ours - float(line["published"]))
        assert f"({100 * float(line['difference']):+.2f})" in section
    assert "A paper &amp; others, Table 1" in section
    assert "scaling 0.5 here, 0.4 there" in section
    assert section.count("<tr>") == 3
    beyond = sum(line["beyond"] == "True" for line in lines)
    assert 1 <= beyond == section.count('<b class="mark">(')


def test_the_tables_are_frames_whose_names_are_text_and_whose_numbers_are_numbers(folder: Path) -> None:
    found = merganser.load(folder)
    assert set(IDENTITY) <= set(TEXTS)
    assert found["entry"].tolist() == [row["entry"] for row in csv.DictReader((folder / "report/results.csv").open())]
    for name in found.columns:
        numeric = found[name].dtype.kind in "if"
        assert numeric != (name in TEXTS), name
    assert merganser.load(folder / "report/plots/scores.csv")["count"].dtype == "Int64"


def test_results_on_other_examples_are_refused(folder: Path) -> None:
    file = Path("data/examples/sum/red.safetensors")
    content = file.read_bytes()
    results = read_results(file)
    assert results.label is not None
    try:
        write_results(file, replace(results, label=1 - results.label))
        with pytest.raises(InputError, match=r"red\.safetensors: has other examples than data/examples/.*/red"):
            report_without_plots()
    finally:
        file.write_bytes(content)


def test_the_runs_and_parameters_of_each_entry_are_shown(page: str) -> None:
    for entry in METHODS:
        assert json.loads(Path(f"data/records/{entry}.json").read_text())["run_id"] in page
    assert "scaling 0.5" in page
    assert "<i>coefficients unset</i>" in page


def test_the_warning_about_the_embedded_suite_is_not_shown_for_other_models(page: str) -> None:
    assert "A demonstration, not evidence" not in page


def test_the_tables_hold_the_same_numbers_in_the_order_of_the_page(folder: Path, page: str) -> None:
    rows = list(csv.DictReader((folder / "report/results.csv").open()))
    assert [row["entry"] for row in rows] == [entry for entry, _ in rows_of(page, "scores")]
    assert {file.name for file in (folder / "report/plots").iterdir()} == TABLES | {f"{name}.svg" for name in PLOTS}
    assert {row["entry"]: row["reads"] for row in rows} == {entry: METHODS[entry]["reads"] for entry in METHODS}
    individual = next(row for row in rows if row["entry"] == "individual")
    assert float(individual["normalised_score"]) == 1
    assert float(individual["score_drop_rate"]) == 0
    summary = json.loads((folder / "data/scores.json").read_text())
    for row in rows:
        assert summary[row["entry"]]["mean"] == float(row["mean"])
        assert summary[row["entry"]]["accuracy"] == {task: float(row[task]) for task in TASKS}


def test_dvc_shows_few_metrics_the_best_entries_and_a_row_for_each_entry(folder: Path) -> None:
    rows = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    shown = json.loads((folder / "metrics.json").read_text())
    assert len(shown) <= 12
    for name, group in (("best_single", "single"), ("best_with_parts", "parts")):
        means = [float(row["mean"]) for row in rows.values() if (row["group"], row["data"]) == (group, "no data")]
        assert float(rows[shown[name]]["mean"]) == shown[f"{name}_mean"] == max(means)
    assert (shown["entry_count"], shown["task_count"]) == (len(METHODS), len(TASKS))
    files = {path.stem: json.loads(path.read_text()) for path in (folder / "report/entries").iterdir()}
    assert files.keys() == rows.keys()
    for entry, metrics in files.items():
        found = {name: rows[entry][name] for name in ("mean", "normalised_score", "amr", "spread", "unseen")}
        assert metrics == {name: float(value) for name, value in found.items() if value}


def test_a_score_below_chance_is_marked_and_no_other(folder: Path, page: str) -> None:
    chances = {row["task"]: float(row["chance"]) for row in csv.DictReader((folder / "report/baselines.csv").open())}
    rows = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    below = {(entry, task) for entry in rows for task in TASKS if float(rows[entry][task]) < chances[task]}
    cells = re.findall(r'<td style="--shade[^>]* class="(task[^"]*)"><a href="[^"]*/metrics/(\w+)/(\w+)\.json"', page)
    assert {(entry, task) for looks, entry, task in cells if "below" in looks.split()} == below != set()


def test_every_plot_of_dvc_has_points_and_numbers_on_its_axes(folder: Path) -> None:
    plots = yaml.safe_load((Path(__file__).parents[2] / "dvc.yaml").read_text())["plots"]
    for name, plot in (pair for each in plots for pair in each.items()):
        ((file, columns),) = plot["y"].items()
        rows = list(csv.DictReader((folder / file).open()))
        axes = [plot["x"]] if plot["template"] == "bar_horizontal" else [plot["x"], *np.atleast_1d(columns)]
        found = [[float(row[column]) for column in axes] for row in rows if all(row[column] for column in axes)]
        assert found, name


def test_scores_of_some_examples_are_marked_as_partial_on_the_page_and_in_the_table(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "partial")
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["evaluation"] = params.get("evaluation", {}) | {"split": {"name": "test", "examples": 7}}
    with inside(tmp_path / "partial"):
        Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        report_without_plots()
        rows = list(csv.DictReader(Path("report/results.csv").read_text().splitlines()))
        assert {row["partial"] for row in rows} == {"at most 7 examples of each task"}
        assert "<strong>Partial:</strong> measured on at most 7 examples" in Path("report/index.html").read_text()
    assert "partial" not in (folder / "report/results.csv").read_text().splitlines()[0]


def test_entries_stand_by_family_the_best_of_a_family_first(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "report/results.csv").open()))
    families = [row["family"] for row in rows]
    assert list(dict.fromkeys(families)) == ["references", "arithmetic", "compressed"]
    assert families == sorted(families, key=["references", "arithmetic", "compressed"].index)
    arithmetic = [float(row["mean"]) for row in rows if row["family"] == "arithmetic"]
    assert arithmetic == sorted(arithmetic, reverse=True)


def test_each_entry_says_what_its_method_is(page: str) -> None:
    article = re.search(r'<article id="entry-tsv_c".*?</article>', page, flags=re.S)
    assert article
    about = registry.get("tsv_c")
    for fact in (about.family, about.reads, about.involvement, about.efficiency.lower(), about.paper, about.formula):
        assert str(escape(fact)) in article[0]


def test_measures_are_kept_whole_and_as_tables(folder: Path) -> None:
    measures = json.loads((folder / "report/measures.json").read_text())
    assert measures["tasks"] == json.loads((folder / "data/measures/tasks.json").read_text())
    for entry in METHODS:
        assert measures["entries"][entry] == json.loads((folder / f"data/measures/merged/{entry}.json").read_text())
    held = list(csv.DictReader((folder / "report/plots/errors.csv").open()))
    assert {row["entry"] for row in held} == {"tsv_c", "individual"}
    assert [float(row["error"]) for row in held if row["entry"] == "tsv_c"] == measures["entries"]["tsv_c"]["error"]
    rows = {row["layer"]: row for row in csv.DictReader((folder / "report/plots/layers.csv").open())}
    for name, layer in measures["tasks"]["layers"].items():
        assert (name in rows) == (layer["kind"] == "matrix")
    for name, row in rows.items():
        found = measures["tasks"]["layers"][name]
        assert float(row["effective_rank"]) == pytest.approx(sum(found["effective_rank"]) / len(TASKS))
        pairs = [found["cosines"][i][j] for i in range(len(TASKS)) for j in range(len(TASKS)) if i != j]
        assert float(row["cosine"]) == pytest.approx(sum(pairs) / len(pairs))


def test_both_sides_of_each_bound_are_kept_and_the_page_shows_where_it_is_nearest(folder: Path, page: str) -> None:
    measured = json.loads((folder / "data/measures/tasks.json").read_text())
    lines = list(csv.DictReader((folder / "report/bounds.csv").open()))
    assert {line["bound"] for line in lines} == set(CLAIMS)
    for line in lines:
        place = measured["layers"][line["layer"]] if line["layer"] else measured
        for side in ("left", "right"):
            assert float(line[side]) == place["bounds"][line["bound"]][side]
        assert line["holds"] == str(float(line["left"]) <= float(line["right"]) * (1 + 1e-6))
    (section,) = re.findall(r'<section id="bounds".*?</section>', page, flags=re.S)
    for name, claim in CLAIMS.items():
        own = [line for line in lines if line["bound"] == name and bool(line["layer"]) == claim.of_layers]
        worst = max(own, key=lambda line: float(line["ratio"]))
        (row,) = (row for row in section.split("<tr>") if str(escape(claim.says)) in row)
        assert f"<td>{digits(float(worst['ratio']))}</td>" in row
        assert worst["at"] in row
        if claim.of_layers:
            assert f"{sum(line['holds'] == 'True' for line in own)} of {len(own)}" in row
        assert ("not claimed here" in row) == (name == "tsv")  # of three tasks


def test_measures_stand_beside_the_score_that_is_lost_with_their_number_and_interval(folder: Path, page: str) -> None:
    lines = [line for line in csv.DictReader((folder / "report/explanations.csv").open()) if not line["layer"]]
    found = {(line["points"], line["measure"]): line for line in lines}
    scores = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    measures = json.loads((folder / "report/measures.json").read_text())

    def lost(entry: str) -> list[float]:
        return [
            1 - float(scores[entry][task]) / float(scores["individual"][task]) for task in measures["tasks"]["tasks"]
        ]

    merges, single = found["entries × tasks", "sar"], ("average", "sum")
    sar = [value for entry in single for value in measures["entries"][entry]["sar"]]
    expected = spearmanr(sar, [value for entry in single for value in lost(entry)]).statistic
    assert float(merges["spearman"]) == pytest.approx(expected)
    assert (merges["n"], merges["groups"], merges["spearman_low"]) == ("6", "2", "")  # two entries have no interval
    of_tasks = found["tasks", "effective_rank"]
    matrices = [layer for layer in measures["tasks"]["layers"].values() if layer["kind"] == "matrix"]
    ranks = np.mean([layer["effective_rank"] for layer in matrices], axis=0)
    means = np.mean([lost(entry) for entry in single], axis=0)
    assert float(of_tasks["spearman"]) == pytest.approx(spearmanr(ranks, means).statistic)
    assert of_tasks["n"] == "3"
    subsets = list(csv.DictReader((folder / "report/plots/study_tasks.csv").open()))
    by_entry = {e: np.mean([float(p["normalised"]) for p in subsets if p["entry"] == e]) for e in STUDIES}
    missed = [by_entry[point["entry"]] - float(point["normalised"]) for point in subsets]
    sizes = found["subsets × entries", "tasks_merged"]
    assert float(sizes["pearson"]) == pytest.approx(pearsonr([int(p["tasks"]) for p in subsets], missed).statistic)
    assert int(sizes["n"]) == len(subsets)
    assert int(sizes["groups"]) == len(subsets) / len(STUDIES)
    cosines = np.mean([layer["cosines"] for layer in matrices], axis=0)
    places = [[measures["tasks"]["tasks"].index(task) for task in point["subset"].split("+")] for point in subsets]
    pairs = [np.mean([cosines[i, j] for i in at for j in at if i != j]) for at in places]
    assert float(found["subsets × entries", "cosine"]["pearson"]) == pytest.approx(pearsonr(pairs, missed).statistic)
    (section,) = re.findall(r'<section id="explanations".*?</section>', page, flags=re.S)
    assert section.count("<tr>") == 1 + len(lines)
    assert "2 entries" in section


def test_without_individual_models_nothing_is_lost_and_nothing_explained(folder: Path) -> None:
    comparison = open_comparison()
    others = [row for row in comparison.rows if row.entry != "individual"]
    assert find_points(others, comparison.measured, comparison.of(study_tasks.read)) == []


def test_rank_and_interference_are_the_sums_of_the_paper(folder: Path) -> None:
    comparison = open_comparison()
    measured, study = comparison.measured, comparison.of(study_tasks.read)
    (points,) = (each for each in comparison.of(explanations.read).points if each.kind == "subsets")
    layers = [measured.of_tasks["layers"][name] for name in measured.matrices]
    deltas = open_deltas(Path("data/deltas"), measured.tasks)
    for number, point in enumerate(study.points):
        at = [measured.tasks.index(task) for task in point.subset]
        for place, (name, layer) in enumerate(zip(measured.matrices, layers, strict=True)):
            found = layer["row_space_interference"]["own"]
            summed = sum(found[i][j] for i in at for j in at if i != j)
            assert points.measures["i_k"][place, number] == pytest.approx(summed)
            D = deltas.layer(name).deltas.double().numpy()
            spectra = np.linalg.svd(D - D.mean(0), compute_uv=False)[at, layer["rank"] :]
            assert points.measures["reconstruction"][place, number] == pytest.approx((spectra**2).sum(), rel=1e-4)


def test_the_best_single_models_answers_are_shown_by_class(folder: Path, page: str) -> None:
    lines = list(csv.DictReader((folder / "report/confusions.csv").open()))
    results = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    (entry,) = {line["entry"] for line in lines}
    assert float(results[entry]["mean"]) == max(float(results[name]["mean"]) for name in ("average", "sum"))
    for task in TASKS:
        found = read_results(folder / f"data/examples/{entry}/{task}.safetensors")
        assert found.label is not None
        assert found.prediction is not None
        classes = np.unique(np.concatenate([found.label, found.prediction]))
        counts = [(found.label == each).sum() for each in classes]
        own = [line for line in lines if line["task"] == task and line["label"] == line["answer"]]
        shares = {int(line["label"]): float(line["share"]) for line in own}
        assert sum(counts[label] * share for label, share in shares.items()) / sum(counts) == pytest.approx(
            float(results[entry][task])
        )
    assert f"Answers of {entry}, the best entry with one model" in page


def test_tsv_m_takes_the_interference_away(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "report/plots/layers.csv").open()))
    assert rows
    for row in rows:
        assert float(row["interference"]) > 0.1
        assert float(row["interference_after_tsv_m"]) < 1e-6 * float(row["interference"])


def test_heatmaps_and_lines_follow_the_theme_of_the_page(page: str) -> None:
    for colour in VARIABLES:
        assert colour not in page[page.index("<main>") :]
    assert page.count("fill-opacity") > 10


def test_the_same_results_give_the_same_report_but_for_whose_it_is(folder: Path) -> None:
    before = {file: file.read_bytes() for file in (folder / "report").rglob("*") if file.is_file()}
    report.main([])
    after = {file: file.read_bytes() for file in (folder / "report").rglob("*") if file.is_file()}
    assert before.keys() == after.keys()
    assert {file.name for file in before if before[file] != after[file]} <= {"origin.json", "index.html"}
    box = re.compile(r'<section id="origin">.*?</section>', re.S)
    pages = [box.sub("", found[folder / "report/index.html"].decode()) for found in (before, after)]
    assert pages[0] == pages[1]


def test_a_missing_record_is_named(folder: Path) -> None:
    file = Path("data/records/sum.json")
    content = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(InputError, match=r"data/records/sum\.json: missing"):
            report.main([])
    finally:
        file.write_bytes(content)


def test_labels_keep_apart_and_keep_their_order() -> None:
    points = [(10.0, 50.0 + 0.5 * i) for i in range(8)] + [(60.0, 51.0)]
    places = place_labels(points, [40.0] * 9, 400.0)
    column = [place.y for place in places[:8]]
    assert all(above - below >= LABEL_HEIGHT - 1e-9 for below, above in pairwise(column))
    assert all(0 <= place.x <= 360 for place in places)


def test_spread_moves_only_what_is_too_close() -> None:
    assert spread([10.0, 0.0, 0.0], 2.0) == pytest.approx([10.0, -1.0, 1.0])


def test_layer_names_lose_what_they_share() -> None:
    names = ["visual.proj", "visual.transformer.resblocks.0.mlp.c_fc.weight"]
    assert short_names(names) == ["proj", "block.0.mlp.c_fc"]
    assert short_names(["visual.proj"]) == ["proj"]


def test_layers_stand_by_depth_and_not_by_spelling() -> None:
    names = [f"block.{i}.mlp" for i in (0, 2, 10)]
    assert by_depth([names[2], names[0], names[1]]) == names


def test_layers_of_one_kind_share_a_panel_and_lone_ones_the_last() -> None:
    names = ["conv1", "block.0.attn.weight", "block.0.mlp.weight", "block.1.attn.weight", "block.1.mlp.weight"]
    found = panels(names)
    assert [(panel.title, panel.ticks) for panel in found] == [
        ("attn", ["0", "1"]),
        ("mlp", ["0", "1"]),
        ("others", ["conv1"]),
    ]
    assert found[0].layers == ["block.0.attn.weight", "block.1.attn.weight"]
    assert sorted(name for panel in found for name in panel.layers) == sorted(names)


def test_the_command_line_says_the_same_differences_as_the_table(folder: Path) -> None:
    found = read_figures(folder)
    lines = list(csv.DictReader((folder / "report/published.csv").open()))
    assert [(line["entry"], line["column"], line["difference"]) for line in found] == [
        (line["entry"], line["column"], float(line["difference"])) for line in lines
    ]
    said = list(figure_lines(found))
    assert said[:2] == ["A paper & others, Table 1; other checkpoints, trained alike", "  accuracy on the test split"]
    assert len(said) == 2 + len(lines) + 1
    beyond = sum(line["beyond"] is True for line in found)
    assert said[-1] == f"{beyond} of {len(lines)} differences are beyond our sampling error (95 %)"


def test_where_no_published_figure_is_of_the_comparison_the_table_is_empty_and_the_command_line_says_so(
    tmp_path: Path,
) -> None:
    write_tables(tmp_path, published.tables([]))
    with (tmp_path / "published.csv").open() as file:
        assert list(csv.DictReader(file)) == []
    assert list(figure_lines([])) == ["the published figures have other entries, tasks or means than this comparison"]


def test_tables_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    code = "import sys, pathlib; from merganser.report.formats import write_tables; "
    code += "write_tables(pathlib.Path(sys.argv[1]), {'a.csv': ([chr(963)], []), 'a.tex': chr(963)})"
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ | ascii_only, check=True)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "σ\n"
    assert (tmp_path / "a.tex").read_text(encoding="utf-8") == "σ"


def test_licences_that_do_not_go_together_stand_at_the_head_of_the_page(folder: Path, page: str) -> None:
    assert 'id="licences"' not in page
    for entry, lines in {"sum": ["first <b>"], "average": ["first <b>", "second"]}.items():
        path = Path(f"data/profiles/merge/{entry}.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"licences": lines}))
    report_without_plots()
    said = (folder / "report/index.html").read_text().split('id="licences"')[1].split("</aside>")[0]
    assert re.findall(r"<li>(.*?)</li>", said) == ["first &lt;b&gt;", "second"]


def test_the_page_says_whose_result_it_is_and_how_to_check_it(folder: Path, page: str) -> None:
    (section,) = re.findall(r'<section id="origin".*?</section>', page, flags=re.S)
    choices = hashlib.sha256((folder / "params.yaml").read_bytes()).hexdigest()
    for said in (getpass.getuser(), socket.gethostname(), choices, "merganser lineage verify", "--signed-by KEY"):
        assert said in section
    found = read_origin(folder / "params.yaml", folder / "kept.txt").as_json()
    assert (found["choices"], found["head"], found["anchor"]) == (choices, None, None)  # no run wrote a ledger here
    assert "none: no run had written a line" in section


def test_the_head_of_the_ledger_is_an_anchor_that_the_engine_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("seed: 0\n")
    Path(".dvcfleet").mkdir()
    ledger = Ledger(Path(".dvcfleet").absolute(), "run", lambda: None)
    for name in ("one", "two"):
        ledger.note(Ending(name, Result.FAILED), None, {})
    assert read_origin(Path("params.yaml"), Path("kept.txt")).anchor == str(anchor_of(Path(".dvcfleet")))
