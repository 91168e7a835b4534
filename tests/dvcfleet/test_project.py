"""A repository declares its project; nothing is guessed from its files."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.warm import python

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("no_such_module:PROJECT", "No module named 'no_such_module'"),
        ("dvcfleet.project:NO_SUCH_NAME", "has no attribute 'NO_SUCH_NAME'"),
        ("dvcfleet.project:TABLE", "should be an object of a class that extends dvcfleet.project.Project"),
        ("dvcfleet.project:Project", "should be an object of a class that extends dvcfleet.project.Project"),
        ("tests.dvcfleet.no_project:PROJECT", "cannot be loaded (KeyError: 'this module cannot be imported')"),
    ],
)
def test_a_project_that_cannot_be_loaded_is_the_users_mistake(toy: Make, declared: str, said: str) -> None:
    chain = toy(CHAIN, CHAIN_FILES | {"pyproject.toml": f'[tool.dvcfleet]\nproject = "{declared}"\n'})
    for options in ({}, {"dry_run": True}):
        code, text = chain.run(**options)
        assert (code, chain.ran()) == (2, [])
        assert f'pyproject.toml: tool.dvcfleet.project: "{declared}"' in text
        assert said in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.dvcfleet]\nproject = \n", "cannot be read as TOML"),
        ("[tool]\ndvcfleet = ['flows:PROJECT']\n", "tool.dvcfleet should be a table with project"),
        ("[tool]\ndvcfleet = 'flows:PROJECT'\n", "tool.dvcfleet should be a table with project"),
        (
            "[tool.dvcfleet]\nproject = ['flows']\n",
            """tool.dvcfleet.project should be "module:object", got ['flows']""",
        ),
        ("[tool.dvcfleet]\nproject = 'flows'\n", """tool.dvcfleet.project should be "module:object", got 'flows'"""),
        ("[tool.dvcfleet]\nprojects = 'flows:PROJECT'\n", "tool.dvcfleet.projects: unknown; there is project"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(toy: Make, text: str, said: str) -> None:
    code, printed = toy(CHAIN, CHAIN_FILES | {"pyproject.toml": text}).run(dry_run=True)
    assert code == 2
    assert "pyproject.toml: " in printed
    assert said in printed


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n", "tool = 'a string'\n", "[tool.other]\na = 1\n", "# \xff\n"])
def test_a_pyproject_of_somebody_elses_is_ignored_in_any_form(toy: Make, text: str) -> None:
    source = toy("stages: {a: {cmd: cat source > a.txt, deps: [source], outs: [a.txt]}}", {"source": ""})
    (source.path / "pyproject.toml").write_text(text, encoding="latin-1")
    code, printed = source.run()
    assert code == 0
    assert "pyproject.toml" not in printed


@pytest.mark.slow
def test_a_repositorys_own_package_of_our_name_is_not_imported(toy: Make) -> None:
    trap = "import pathlib; pathlib.Path('imported').touch(); raise SystemExit('imported')"
    files = {f"{name}/__init__.py": trap for name in ("flows", "tasks", "merganser", "dvcfleet")}
    chain = toy(CHAIN, CHAIN_FILES | files | {"params.yaml": "turn: {times: 1}\nbase: {}\nmethods: {}\n"})
    # As the installed command begins: without the current folder among the places to import from.
    command = [*python(), "-P", "-c", "from flows.__main__ import start; start()", "run"]
    done = subprocess.run(
        command,
        cwd=chain.path,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (chain.path / "imported").exists()
    assert chain.settled()
