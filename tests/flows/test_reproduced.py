"""What of the papers reproduces over all suites that were run: here, in comparisons beside this one, in kept runs."""

import shutil
import subprocess
from contextlib import chdir
from dataclasses import asdict, astuple
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from merganser.flows.evidence.runs.printing import as_page
from merganser.flows.pages.reproduced import UNEXPLAINED, AllSuites, Compared, all_lines, compared, plain, read_all
from merganser.report.formats import write_csv
from tests.flows.test_comparisons import git

HEADER = ["paper", "table", "protocol", "checkpoints", "entry", "column", "ours", "published"]
HEADER += ["difference", "stderr", "beyond", "note"]
LINES = [
    [
        "DRM",
        "Table 10",
        "accuracy",
        "others",
        "ties",
        "mean",
        0.7,
        0.72,
        -0.02,
        0.001,
        True,
        "scaling 0.3 here, 1.0 there",
    ],
    [
        "DRM",
        "Table 10",
        "accuracy",
        "others",
        "ties",
        "dtd",
        0.5,
        0.501,
        -0.001,
        0.001,
        False,
        "scaling 0.3 here, 1.0 there",
    ],
    ["DRM", "Table 10", "accuracy", "others", "drm_h", "mean", 0.775, 0.775, 0.0, 0.001, False, None],
    ["DTS", "Table 1", "accuracy", "these", "svd", "mean", 0.9, 0.8898, 0.0102, 0.001, True, None],
    ["DTS", "Table 1", "accuracy", "these", "svd", "amr", 0.06, 0.0587, 0.0013, None, None, None],
]


def in_use(folder: Path, suite: str, *, lines: list[list[object]] = LINES, reads: str = "deltas") -> None:
    """Put a suite's choices and the report of its run into a folder."""
    methods = {"ties": {"method": "ties", "reads": reads}}
    content = {"published": {"source": f"suites/{suite}/published.yaml"}, "methods": methods}
    (folder / "params.yaml").write_text(yaml.safe_dump(content))
    (folder / "report").mkdir(exist_ok=True)
    write_csv(folder / "report/published.csv", HEADER, lines)
    lock = {"schema": "2.0", "stages": {"report": {"cmd": "report", "params": {"params.yaml": content}}}}
    (folder / "dvc.lock").write_text(yaml.safe_dump(lock))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of git and DVC with the suite `here` in use, and one `gone` whose report is in the cache alone."""
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    Repo.init(str(root)).close()
    in_use(root, "gone", lines=LINES[2:3])
    (root / "made").mkdir()
    shutil.copy(root / "report/published.csv", root / "made")
    stage = {"cmd": "mkdir -p report && cp made/published.csv report/", "outs": ["report"]}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"report": stage}}))
    shutil.rmtree(root / "report")
    with chdir(root), Repo() as repo:
        repo.reproduce()
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    git(root, "update-ref", "refs/exps/ab/cdef/brave-otter", "HEAD")
    in_use(root, "here")
    return root


def test_an_entrys_figures_are_summed_up_with_why_they_are_another_experiment(root: Path) -> None:
    (here, _) = read_all(root).suites
    assert here.rows == (
        Compared(
            *("DRM", "Table 10", "ties", 2, 1, 0.7, 0.72),
            "scaling 0.3 here, 1.0 there; other checkpoints, trained alike",
        ),
        Compared("DRM", "Table 10", "drm_h", 1, 0, 0.775, 0.775, "other checkpoints, trained alike"),
        Compared("DTS", "Table 1", "svd", 1, 1, 0.9, 0.8898, UNEXPLAINED),
    )
    assert here.rows[0].difference == pytest.approx(-0.02)


def test_suites_are_found_here_beside_here_and_in_kept_runs_once_each(root: Path, tmp_path: Path) -> None:
    git(root, "worktree", "add", "-q", str(tmp_path / "beside"), "-b", "beside")
    in_use(tmp_path / "beside", "there", reads="searches/ties")
    found = {each.suite: each.place for each in read_all(root).suites}
    assert found == {
        "here": str(root.resolve()),
        "there --grids": str((tmp_path / "beside").resolve()),
        "gone": "run brave-otter",
    }
    in_use(root, "gone")
    assert {each.suite: len(each.rows) for each in read_all(root).suites} == {"gone": 3, "there --grids": 3}


def test_a_report_is_the_suites_that_it_was_made_by_when_another_is_in_use(root: Path) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump({"published": {"source": "suites/gone/published.yaml"}}))
    assert {each.suite: len(each.rows) for each in read_all(root).suites} == {"here": 3, "gone": 1}


@pytest.mark.parametrize(
    ("damage", "suites"),
    [
        ({"published": "a text"}, ["gone"]),
        ({"published": {"source": ["a list"]}}, ["gone"]),
        ({"methods": None}, ["here", "gone"]),
        ({"methods": ["ties"]}, ["here", "gone"]),
        ({"methods": {"ties": None}}, ["here", "gone"]),
    ],
)
def test_choices_of_another_form_end_nothing(root: Path, damage: dict[str, object], suites: list[str]) -> None:
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    lock["stages"]["report"]["params"]["params.yaml"] |= damage
    (root / "dvc.lock").write_text(yaml.safe_dump(lock))
    assert [suite.suite for suite in read_all(root).suites] == suites


def test_papers_are_added_up_over_the_suites(root: Path) -> None:
    every = read_all(root)
    assert [astuple(tally) for tally in every.papers] == [("DRM", 4, 3, 1, 0), ("DTS", 1, 0, 0, 1)]
    said = list(all_lines(every))
    assert said[:3] == [
        "DRM: 3 of 4 figures within our sampling error, 1 beyond it by other experiments, 0 by the same one",
        "DTS: 0 of 1 figures within our sampling error, 0 beyond it by other experiments, 1 by the same one",
        f"here: {root.resolve()}",
    ]
    assert said[3:5] == ["  DRM", "    within our sampling error (95 %): drm_h (Table 10)"]
    assert said[6:8] == ["  DTS", f"    svd, Table 1: 1 of 1 beyond, mean 90.00 against 88.98; {UNEXPLAINED}"]
    assert asdict(every)["papers"][1]["unexplained"] == 1


def test_a_row_without_a_mean_has_no_difference_and_rates_are_not_judged() -> None:
    lines = [plain(dict(zip(HEADER, map(str, [*LINES[4][:-2], "", ""]), strict=True)) | {"stderr": ""})]
    (row,) = compared(lines)
    assert (row.figures, row.beyond, row.difference) == (0, 0, None)
    assert list(all_lines(AllSuites((), (), ("there",)))) == ["not run here: there"]


def test_the_page_names_every_row_that_does_not_reproduce(root: Path) -> None:
    page = as_page("reproduced_all", all=read_all(root))
    for words in ("svd", "<h3>DTS</h3>", "Table 1", "1 of 2", "-2.00", "brave-otter", "scaling 0.3 here, 1.0 there"):
        assert words in page
