"""The page of evidence says what its runs' files say, and those what the reports said."""

import csv
import json
from pathlib import Path
from statistics import mean

import pytest

from tools import evidence
from tools.evidence import KEPT, PAGES, figures, main, read_report, read_runs, with_tables

HEAD = ["entry", "group", "data", "mean", "normalised_score", "amr", "stderr"]
PAGE_OF_TWO = """
<!-- tiny single -->

| old |

<!-- tiny parts -->

<!-- tiny tasks -->

<!-- tiny orders -->

<!-- other single -->

| stays only while other has runs |
"""


def write_report(folder: Path, shift: float, p: float) -> Path:
    """Write a report of five entries, whose means are shifted."""
    folder.mkdir()
    rows = [
        ["base", "reference", "no data", 0.25, 0.3125, 0.0, 0.01],
        ["individual", "reference", "no data", 0.8, 1.0, 1.0, 0.01],
        ["average", "single", "no data", 0.5 + shift, 0.625, 0.0, 0.03],
        ["task_arithmetic", "single", "no data", 0.6, 0.75, 0.0, 0.04],
        ["fisher", "single", "validation data", 0.55, 0.6875, 0.0, 0.01],
        ["emr", "parts", "no data", 0.7, 0.875, 0.031, 0.01],
    ]
    write(folder / "results.csv", HEAD, rows)
    verdicts = [["mean", "average", p], ["movies", "average", 0.001], ["mean", "base", 0.2]]
    write(folder / "significance.csv", ["column", "entry", "corrected"], verdicts)
    pairs = [["mean", "average", "task_arithmetic", shift - 0.1, p], ["movies", "average", "task_arithmetic", 0.3, 0.0]]
    write(folder / "pairs.csv", ["column", "entry", "other", "difference", "p"], pairs)
    return folder


def add_tasks(report: Path) -> None:
    """Write what a report says of tasks and of its origin."""
    (report / "plots").mkdir()
    rows = [
        ["individual", "movies", 0.9, 0.01],
        ["individual", "tweets", 0.7, ""],
        ["average", "movies", 0.6, 0.04],
        ["average", "tweets", 0.4, ""],
        ["base", "movies", 0.45, 0.02],
        ["base", "tweets", 0.05, ""],
    ]
    write(report / "plots/scores.csv", ["entry", "task", "value", "stderr"], rows)
    origin = {"commit": "c0ffee", "choices": "d1ce", "user": "me", "host": "here"}
    (report / "origin.json").write_text(json.dumps(origin))


def write(path: Path, head: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evidence, "PAGES", (tmp_path / "evidence.md",))
    monkeypatch.setattr(evidence, "KEPT", tmp_path / "evidence")
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence.md").write_text(PAGE_OF_TWO)
    return tmp_path / "evidence.md"


def test_a_runs_report_becomes_the_pages_tables(page: Path, tmp_path: Path) -> None:
    main([f"tiny-0={write_report(tmp_path / 'one', 0.0, 0.001)}"])
    text = page.read_text()
    assert "| old |" not in text
    assert "stays" not in text
    assert "| `average` |  | 50.0 | 3.0 |  | 62.5 | 0.0 | 1 of 1 |" in text
    assert "| `base` |  | 25.0 | 1.0 |  | 31.2 | 0.0 |  |" in text
    assert "| `fisher` | validation data | 55.0 |" in text
    single, _, parts = text.partition("<!-- tiny parts -->")
    assert ["`base`" in single, "`individual`" in single, "`individual`" in parts] == [True, False, True]
    assert "| `average` | `task_arithmetic` | SFTM, table 1: 65.8, 70.1 | +10.0 | 1 | 0 | 0 |" in text
    before = page.read_bytes()
    main([])
    assert page.read_bytes() == before


def test_several_seeds_are_averaged_with_their_spread_and_both_errors(page: Path, tmp_path: Path) -> None:
    made = [(0.0, 0.001), (0.2, 0.001), (0.1, 0.6)]
    reports = [write_report(tmp_path / f"r{seed}", *of) for seed, of in enumerate(made)]
    main([f"tiny-{seed}={report}" for seed, report in enumerate(reports)])
    text = page.read_text()
    assert "| `average` |  | 60.0 | 1.7 | 10.0 | 62.5 | 0.0 | 2 of 3 |" in text  # 3 / sqrt(3)
    assert "| +10.0, -10.0, -0.0 | 1 | 1 | 1 |" in text
    known = figures(read_runs(page.parent / "evidence"))
    assert known["tiny.emr"]["memory"] == pytest.approx(3.1)
    assert known["tiny.average"]["mean"] == pytest.approx(60.0)


def test_scores_by_task_are_kept_with_the_commit_they_come_from(page: Path, tmp_path: Path) -> None:
    report = write_report(tmp_path / "one", 0.0, 0.001)
    main([f"tiny-0={report}"])
    assert "| entry | movies |" not in page.read_text()  # a file of before there were tasks in it
    add_tasks(report)
    main([f"tiny-0={report}"])
    (kept,) = read_runs(page.parent / "evidence")["tiny"]
    assert kept["tasks"]["average"] == {"movies": [0.6, 0.04, 0.666667], "tweets": [0.4, None, 0.571429]}
    assert kept["origin"] == {"commit": "c0ffee", "params": "d1ce"}
    table = "| entry | movies | tweets |\n|---|---|---|\n| `base` | 45.0 | 5.0 |\n| `average` | 60.0 | 40.0 |\n"
    assert table in page.read_text()
    main([f"tiny-1={write_report(tmp_path / 'two', 0.1, 0.001)}"])
    assert table in page.read_text()  # the other of its runs has none


def test_an_entry_that_one_seed_alone_has_is_counted_in_that_one(page: Path, tmp_path: Path) -> None:
    reports = [write_report(tmp_path / f"r{seed}", 0.1 * seed, 0.001) for seed in range(2)]
    with (reports[1] / "results.csv").open("a", newline="") as file:
        csv.writer(file).writerow(["wudi", "single", "no data", 0.5, 0.625, 0.0, 0.03])
    main([f"tiny-{seed}={report}" for seed, report in enumerate(reports)])
    assert "| `wudi` |  | 50.0 | 3.0 |  | 62.5 | 0.0 | 0 of 1 |" in page.read_text()
    assert "| `average` |  | 55.0 | 2.1 | 7.1 | 62.5 | 0.0 | 2 of 2 |" in page.read_text()


def test_orders_are_corrected_for_how_many_there_are(tmp_path: Path) -> None:
    report = write_report(tmp_path / "one", 0.0, 0.03)
    with (report / "pairs.csv").open("a") as file:
        file.write("mean,ties,task_arithmetic,0.2,0.04\n")
    found = [["average", "task_arithmetic", 0.1, 0.06], ["task_arithmetic", "ties", 0.2, 0.06]]
    assert read_report(report)["orders"] == found


def test_the_pages_of_evidence_are_those_of_their_runs() -> None:
    runs, pages = read_runs(KEPT), [page.read_text() for page in PAGES]
    assert [with_tables(page, runs) for page in pages] == pages
    for file in KEPT.glob("*.json"):
        assert f"<!-- {file.stem.rpartition('-')[0]} single -->" in "".join(pages)
        kept = json.loads(file.read_text())
        assert kept["entries"].keys() >= {"base", "individual", "average"}
        for entry, tasks in kept.get("tasks", {}).items():
            means = [mean(column) for column in list(zip(*tasks.values(), strict=True))[::2]]
            about = kept["entries"][entry]
            assert means == pytest.approx([about["mean"], about["individual"]], abs=2e-6)


def test_a_table_at_the_end_of_a_page_is_filled_when_its_first_run_is_there() -> None:
    page = "# Evidence\n\n<!-- two single -->\n"
    empty = with_tables(page, {})
    entry = {
        "group": "single",
        "data": "no data",
        "behind": False,
        "mean": 0.5,
        "error": 0.1,
        "individual": 1.0,
        "memory": 0.0,
    }
    filled = with_tables(empty, {"two": [{"entries": {"ties": entry}, "orders": []}]})
    assert "| `ties` |" in filled
    assert with_tables(filled, {}) == empty
