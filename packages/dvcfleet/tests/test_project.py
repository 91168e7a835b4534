"""A repository declares its project, or has the folder of an installed one; nothing else of its files is looked at."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import PYTHONPATH
from tests.dvcfleet.test_command_line import dvcfleet
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.support import forking, python

ROOT = Path(__file__).parents[2]
OFFERED = """
from dvcfleet.project import Project


class Heron(Project):
    def variables(self, run):
        return {"GREETING": "from the heron"}

    def validate(self, repo):
        if repo.root_dir.endswith("refused"):
            raise Refusal("no fish here")


class Refusal(Exception):
    exit_code = 2


HERON = Heron()
"""
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: waders\nVersion: 1.0\n",
    "entry_points.txt": """
[dvcfleet.projects]
heron = waders:HERON
stork = waders.missing:STORK
ibis = waders:Heron
""",
}
GREET = "stages: {greet: {cmd: printenv GREETING > said, outs: [said]}}"


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
        (f"[tool.dvcfleet]\nproject = {'[' * 5000}\n", "cannot be read as TOML"),
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


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a package that offers projects is installed, which processes find."""
    site = tmp_path / "site"
    for folder, files in {"waders": {"__init__.py": OFFERED}, "waders-1.0.dist-info": METADATA}.items():
        (site / folder).mkdir(parents=True)
        for name, text in files.items():
            (site / folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), PYTHONPATH]))
    return site


@pytest.mark.slow
def test_a_repository_takes_an_installed_project_by_its_folder(toy: Make, installed: Path) -> None:
    source = toy(GREET, {".heron/note": ""})
    with forking():
        assert "1 done" in dvcfleet(source.path, "run")
    assert source.read("said") == "from the heron\n"


def run_by_another(folder: Path) -> tuple[int, str]:
    """Plan a run of a repository in a process of its own; return the exit code and what it printed."""
    command = [*python(), "-m", "dvcfleet", "run", "--dry-run"]
    environment = os.environ | {"COLUMNS": "1000"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_mistake_that_an_installed_project_finds_has_its_own_words(toy: Make, installed: Path) -> None:
    code, said = run_by_another(toy(GREET, {".heron/note": ""}, "refused").path)
    assert (code, said) == (2, "no fish here\n")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({".stork/note": ""}, '/.stork: the project stork: "waders.missing:STORK of waders" cannot be loaded'),
        ({".ibis/note": ""}, '/.ibis: the project ibis: "waders:Heron of waders" should be an object of a class that'),
        ({".heron/note": "", ".ibis/note": ""}, "hooks of .heron (waders:HERON of waders) and .ibis (waders:Heron of"),
    ],
)
def test_an_installed_project_that_cannot_be_used_is_the_users_mistake(
    toy: Make, installed: Path, files: dict[str, str], words: str
) -> None:
    code, said = run_by_another(toy(GREET, files).path)
    assert code == 2
    assert words in said


@pytest.mark.parametrize(
    "files",
    [
        {},  # installed, but the repository has no folder of it
        {".heron": "a file"},
        {".heron/note": "", "pyproject.toml": "[tool.dvcfleet]\n"},  # it says for itself that it has no hooks
    ],
)
def test_an_installed_project_is_not_taken_otherwise(toy: Make, installed: Path, files: dict[str, str]) -> None:
    code, said = run_by_another(toy(GREET, files, "refused").path)
    assert code == 0
    assert "no fish" not in said
