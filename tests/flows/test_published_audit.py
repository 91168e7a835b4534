"""Published figures in the report are held to the papers' files that they were written from."""

import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from dvcfleet.lineage.steps import Artifact, Lineage, LineageStep
from merganser.flows.evidence.report_audit import check_papers
from merganser.flows.suites.files import suite_text
from merganser.flows.suites.published import PAPERS
from merganser.flows.suites.ready import load_suite, write_figures
from merganser.tasks.stages import PUBLISHED
from tests.support import copy_repository
from tests.tiny import ROOT

SUITE = "clip-vit-b-32-8"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a committed folder with a suite's params.yaml and published figures, as `use` writes them."""
    folder = tmp_path_factory.mktemp("used")
    for name in ("suites", "published"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "params.yaml").write_text(suite_text(folder, SUITE))
    write_figures(folder, load_suite(folder, SUITE))
    git = ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    return folder


@pytest.fixture
def used(made: Path, tmp_path: Path) -> Path:
    """Give a copy of it to change."""
    return copy_repository(made, tmp_path / "used")


def found(folder: Path) -> list[str]:
    output = Artifact(str(PUBLISHED), None, None, "data")
    step = LineageStep("publish@source", None, (), {}, (), (output,), (), None)
    with chdir(folder):
        return [str(finding) for finding in check_papers(Lineage({step.stage: step}, {}))]


def test_an_edited_paper_is_found_if_the_report_shows_its_figures(used: Path) -> None:
    assert found(used) == []
    paper = used / PAPERS / "tsv.yaml"
    rows = paper.read_text()
    paper.write_text(rows.replace("92.3", "99.3").replace("85.9", "99.9"))
    assert paper.read_text() != rows
    (line,) = found(used)
    assert line.startswith("published figures changed: published: published/tsv.yaml changed since publish@source ran")
    paper.write_text(rows + "# a comment\n")
    assert found(used) == []


def test_a_paper_that_is_added_or_broken_is_found_too(used: Path) -> None:
    shutil.copy(used / PAPERS / "tsv.yaml", used / PAPERS / "forged.yaml")
    assert "forged.yaml" in found(used)[0]
    (used / PAPERS / "forged.yaml").write_text("paper: [")
    assert "forged.yaml" in found(used)[0]


def test_figures_that_a_user_edited_are_an_input_and_no_finding_of_the_papers(used: Path) -> None:
    figures = used / f"suites/{SUITE}/published.yaml"
    figures.write_text(figures.read_text().replace("tasks:", "tasks:", 1) + "# mine\n")
    assert found(used) == []
