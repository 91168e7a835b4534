"""CONTRIBUTING.md: its code does what its chapters say, and each chapter names a test that follows its steps."""

import ast
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

from merganser.code_digest import ROOT
from tests.support import each, python

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"^ *<!-- contributing: (?P<name>\w+) -->\n *```\w+\n(?P<text>.*?)^ *```$", re.M | re.S)
BLOCKS = {found["name"]: textwrap.dedent(found["text"]) for found in BLOCK.finditer(PAGE)}
CHAPTERS = dict(re.findall(r"^## (Add .*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
TEST = re.compile(r"^Test: `(?P<file>[\w/]+\.py)(?:::(?P<name>\w+))?`\.$", re.M)
NO_SEAM = {  # touch the files that they name, and are tested where those are
    "Add a measure",
    "Add a study",
    "Add a command",
    "Add a source",
    "Add a format of checkpoints",
}
PATH = re.compile(r"`((?:merganser|tests|tools|suites|tasks|flows|packages)/[\w/.]*)`")


@each("chapter", list(CHAPTERS))
def test_each_chapter_names_a_test_that_is_there(chapter: str) -> None:
    found = TEST.search(CHAPTERS[chapter])
    assert (found is None) == (chapter in NO_SEAM), chapter
    if found:
        tree = ast.parse((ROOT / found["file"]).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert found["name"] in names if found["name"] else any(name.startswith("test_") for name in names), chapter


def test_the_files_that_the_page_names_are_there() -> None:
    named = set(PATH.findall(PAGE)) - {"suites/NAME.yaml"}
    assert len(named) > 40
    assert {path for path in named if not (ROOT / path).exists()} == set()


def tree(folder: Path) -> Path:
    """Copy the library and its laws, and link everything else that a method's tests read."""
    shutil.copytree(ROOT / "merganser", folder / "merganser", symlinks=True, ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("tasks", "flows", "packages", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "tests").mkdir()
    for path in (ROOT / "tests").iterdir():
        if path.name not in ("laws", "__pycache__"):
            (folder / "tests" / path.name).symlink_to(path)
    shutil.copytree(ROOT / "tests/laws", folder / "tests/laws", ignore=shutil.ignore_patterns("*.pyc"))
    return folder


def laws(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the references' tests of the page's method in a tree."""
    path = os.environ | {"PYTHONPATH": f"{folder}:{folder / 'packages/dvcfleet'}"}
    command = [*python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments]
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True)


def test_a_method_is_one_file_and_its_law(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    (folder / "merganser/methods/signed_maximum.py").write_text(BLOCKS["method"])
    law = folder / "tests/laws/test_signed_maximum.py"
    law.write_text(BLOCKS["law"])
    done = laws(folder, "tests/laws/test_references.py", "-k", "signed_maximum")
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 10
    law.write_text(BLOCKS["law"].replace(".max(0)", ".min(0)"))
    one = "tests/laws/test_references.py::test_a_method_computes_its_formula[signed_maximum]"
    done = laws(folder, one)
    assert done.returncode == 1, done.stdout[-2000:]
    assert "1 failed" in done.stdout
