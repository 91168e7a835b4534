"""CONTRIBUTING.md: its code does what its chapters say, and each chapter names a test that follows its steps."""

import ast
import re
import textwrap
from pathlib import Path

from merganser.code_digest import ROOT
from tests.chapters import CHAPTERS, PAGE, PYTEST, Copy
from tests.support import each

BLOCK = re.compile(r"^ *<!-- contributing: (?P<name>\w+) -->\n *```\w+\n(?P<text>.*?)^ *```$", re.M | re.S)
BLOCKS = {found["name"]: textwrap.dedent(found["text"]) for found in BLOCK.finditer(PAGE)}
TEST = re.compile(r"^Test: `(?P<file>[\w/]+\.py)(?:::(?P<name>\w+))?`\.$", re.M)
PATH = re.compile(r"`((?:merganser|tests|tools|suites|tasks|flows|packages)/[\w/.]*)`")


@each("chapter", list(CHAPTERS))
def test_each_chapter_names_a_test_that_is_there(chapter: str) -> None:
    found = TEST.search(CHAPTERS[chapter])
    assert found
    tree = ast.parse((ROOT / found["file"]).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert found["name"] in names if found["name"] else any(name.startswith("test_") for name in names)


def test_the_files_that_the_page_names_are_there() -> None:
    named = set(PATH.findall(PAGE)) - {"suites/NAME.yaml"}
    assert len(named) > 40
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_a_method_is_one_file_and_its_law(tmp_path: Path) -> None:
    copy, test = Copy(tmp_path, "Add a method"), "tests/laws/test_references.py"
    copy.add("merganser/methods/signed_maximum.py", BLOCKS["method"])
    copy.add("tests/laws/test_signed_maximum.py", BLOCKS["law"])
    done = copy.run(*PYTEST, test, "-k", "signed_maximum", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 10
    copy.insert("tests/laws/test_signed_maximum.py", "-1 * ", "layer.deltas.max(0)")
    done = copy.run(*PYTEST, f"{test}::test_a_method_computes_its_formula[signed_maximum]", folder=tmp_path)
    assert done.returncode == 1, done.stdout[-2000:]
    assert "1 failed" in done.stdout
