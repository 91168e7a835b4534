import csv
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from merganser.errors import InputError
from merganser.flows.commands import cli
from merganser.flows.steps.answer import Row, changed_lines, choice_lines, markdown_lines, paper_table, report_lines
from merganser.limits import read_yaml
from tests.flows.conftest import Done, Refused


def chosen(budget: str, entry: str, of: int, mean: float, amr: float, data: str = "none") -> Row:
    numbers = {"of": str(of), "p": "", "mean": str(mean), "stderr": "0.004", "amr": str(amr), "seconds": "1.25"}
    return {"budget": budget, "data": data, "entry": entry, **numbers}


def result(entry: str, group: str, mean: float, data: str = "no data") -> Row:
    return {"entry": entry, "group": group, "mean": str(mean), "stderr": "", "data": data}


RESULTS = [
    result("individual", "reference", 0.96),
    *(result(entry, "single", 0.7) for entry in ("tsv_m", "ties", "iso_c", "cart", "pcb")),
    result("emr", "parts", 0.9),
    result("twin", "parts", 0.95, "validation data"),
]
ALONE = [
    *(chosen(key, entry, 6, 0.72, 0.0) for key in ("one_model", "1_percent") for entry in ("tsv_m", "ties")),
    *(chosen(key, "emr", 7, 0.9, 0.032) for key in ("5_percent", "any_size")),
]


def test_each_budgets_best_is_named_with_those_tied_for_best_and_a_budget_without_entries() -> None:
    assert list(choice_lines(ALONE, RESULTS))[1:] == [
        "  one model for all tasks    tsv_m 72.0 ± 0.4, 0 %, 1.2 s; tied: ties",
        "  at most 1 % more per task  no entry but those above",
        "  at most 5 % more per task  emr 90.0 ± 0.4, 3.2 %, 1.2 s",
        "  any size                   no entry but those above",
        "references: individual 96.0",
    ]


def test_data_are_named_where_they_make_another_entry_the_best() -> None:
    same = [row | {"data": "any"} for row in ALONE if row["budget"] != "any_size"]
    assert list(choice_lines([*ALONE, *same], RESULTS))[5:6] == ["with data allowed: none better"]
    better = chosen("any_size", "twin", 8, 0.95, 0.138, "any")
    assert list(choice_lines([*ALONE, *same, better], RESULTS))[5:7] == [
        "with data allowed:",
        "  any size                   twin 95.0 ± 0.4, 14 %, 1.2 s, validation data",
    ]


def write_report(folder: Path, about: Row) -> None:
    """Write the tables of a report; `about`: of each entry."""
    scores = [{"entry": row["entry"], "task": "dark", "stderr": "0.01"} for row in RESULTS]
    verdicts = [{"entry": "ties", "column": "mean", "corrected": "0.5"}]
    tables = {"choices": ALONE, "results": [row | about for row in RESULTS]}
    (folder / "report/plots").mkdir(parents=True)
    for name, rows in (tables | {"plots/scores": scores, "significance": verdicts}).items():
        with (folder / f"report/{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


ABOUT = {"method": "m", "normalised_score": "0.75", "amr": "0.032"}


def test_each_form_says_that_not_all_examples_were_measured_on(tmp_path: Path) -> None:
    partial = "at most 5 examples of each task"
    write_report(tmp_path, ABOUT | {"family": "sparse", "dark": "0.5", "partial": partial})
    assert next(report_lines(tmp_path)) == f"Partial: measured on {partial}."
    assert next(markdown_lines(tmp_path)) == f"**Partial: measured on {partial}.**\n"
    assert paper_table(tmp_path, errors=False).startswith(f"% Partial: measured on {partial}.\n% Needs")


def test_markdown_names_the_best_entries_and_lists_all_by_falling_score(tmp_path: Path) -> None:
    write_report(tmp_path, ABOUT)
    lines = list(markdown_lines(tmp_path))
    assert lines[2:5] == [
        "| memory per task | data | best | mean score | tied for best |",
        "| --- | --- | --- | --- | --- |",
        "| one model for all tasks | none | tsv_m | 72.0 ± 0.4 | ties |",
    ]
    assert lines[-16] == "| individual | m | 96.0 | 75.0 | 3.2 | no data |"
    assert lines[-7:] == [
        "```mermaid",
        "xychart-beta horizontal",
        '    title "Mean score of the best entries"',
        '    x-axis ["individual", "twin", "emr", "tsv_m", "ties", "iso_c", "cart", "pcb"]',
        '    y-axis "mean, times 100" 0 --> 100',
        "    bar [96.0, 95.0, 90.0, 70.0, 70.0, 70.0, 70.0, 70.0]",
        "```",
    ]
    assert {line.count("|") for line in lines if line.startswith("|")} == {6, 7}


def test_the_workflow_for_pull_requests_runs_commands_that_there_are() -> None:
    workflow = read_yaml(Path(__file__).parents[2] / "examples/pull-request.yml")
    (job,) = workflow["jobs"].values()
    lines = [step["run"] for step in job["steps"] if "run" in step]
    own = [shlex.split(line)[1:] for line in lines if line.startswith("merganser ")]
    assert [words[0] for words in own] == ["run", "report"]
    for words in own:
        command = typer.main.get_command(cli.app)
        assert isinstance(command, TyperGroup)
        found = command.commands[words[0]].make_context(words[0], words[1:])
        assert words[0] == "run" or (found.params["markdown"], found.params["out"]) == (True, Path("comment.md"))
    assert workflow["permissions"]["pull-requests"] == "write"


def test_without_a_report_it_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"report/choices\.csv: missing; `merganser run report` writes it"):
        list(report_lines(tmp_path))


def test_no_number_is_taken_from_a_report_that_was_cut_short_since_its_run(
    tiny_copy: Path, done: Done, refused: Refused
) -> None:
    forms = ((), ("--markdown",), ("--tex", "--errors"))
    assert all(done(tiny_copy, "report", *form) for form in forms)
    assert "ties/dark = " in done(tiny_copy, "lineage", "why", "ties/dark")
    table = tiny_copy / "report/results.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.unlink()  # a link into DVC's cache
    table.write_text("".join(lines[:-1]))
    for form in forms:
        assert "report: not as its run wrote it, says dvc.lock" in refused(tiny_copy, "report", *form)
    assert "ties/dark = " not in done(tiny_copy, "lineage", "why", "ties/dark")


def test_what_changed_is_counted_and_the_largest_changes_are_named() -> None:
    before = {name: {"mean": 0.5} for name in ("ties", "dare", "emr", "pcb", "old")}
    now = {name: {"mean": 0.5 + change / 100} for name, change in {"ties": 1, "dare": -3, "emr": 2, "pcb": 0.5}.items()}
    said = "since the last run: 1 new (nan); 1 gone (old); 4 changed (dare -3.0, emr +2.0, ties +1.0, ...)"
    assert list(changed_lines(before, now | {"nan": {"mean": 0.1}})) == [said]
    assert list(changed_lines(before, before)) == ["since the last run: no score changed"]
    assert list(changed_lines({}, now)) == []
