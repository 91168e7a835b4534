"""`merganser` as it is installed: with the dependencies of the library alone, and in a repository."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from merganser import registry
from merganser.command_line import start
from merganser.command_line.trust import is_trusted
from tests import PYTHONPATH
from tests.command_line.light import refused, run_light
from tests.small_models import write_models
from tests.tiny import ROOT, environment, make_clone

COMMANDS = """
import contextlib
from merganser.command_line.start import start

for words in [line.split() for line in sys.argv[1].splitlines()]:
    sys.argv = ["merganser", *words]
    with contextlib.suppress(SystemExit):
        start()
import merganser, pathlib
print(*(name for name in REFUSED if name in sys.modules))
"""

MODULES = """
import importlib, pkgutil
import merganser.flows

for module in pkgutil.walk_packages(merganser.flows.__path__, "merganser.flows."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(module.name, error.name)
"""


def test_the_light_installation_lists_merges_and_reconstructs(tmp_path: Path) -> None:
    write_models(tmp_path)
    models = "--model a=task0 --model b=task1"
    lines = ["methods", f"merge ties --base base {models} --out ties", f"merge emr --base base {models} --out emr"]
    lines += ["reconstruct emr --task a --out own.safetensors", "run", f"status --repo {ROOT}", "", "mrege"]
    assert {"datasets", "dvc", "mlflow", "open_clip", "prefect", "transformers"} <= refused()
    done = run_light(tmp_path, COMMANDS, "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert "Usage: merganser" in done.stdout
    printed = done.stdout.splitlines()
    assert [line.split()[0] for line in printed[1 : 1 + len(registry.names())]] == registry.names()
    assert printed[-1] == ""
    assert {"own.safetensors", "ties", "emr"} <= {path.name for path in tmp_path.iterdir()}
    no_pipeline = "needs dvc, dvcfleet, mlflow, prefect, which the extra `pipeline` brings: pip install"
    assert [f"merganser {name} {no_pipeline}" in done.stderr for name in ("run", "status")] == [True, True]
    assert 'did you mean "merge"?' in done.stderr.splitlines()[-1]


def test_no_folder_around_keeps_a_command_from_its_work(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    for name in ("dvc.yaml", "flows/__main__.py"):
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_text(f"a = {'[' * 100_000}")
    assert start.repository_at(tmp_path) is None


def test_what_an_extra_brings_is_named_with_it(tmp_path: Path) -> None:
    code = "from merganser.extras import naming_extras\nwith naming_extras():\n    import transformers.models"
    done = run_light(tmp_path, code)
    assert "transformers, which is not installed: pip install 'merganser[text]'" in done.stderr.splitlines()[-1]


@pytest.mark.drill  # imports each module of a comparison, and what those import
def test_the_extra_pipeline_brings_what_the_modules_of_a_comparison_import(tmp_path: Path) -> None:
    done = run_light(tmp_path, MODULES, extras=("pipeline",))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["merganser.flows.evidence.keys", "securesystemslib"]


def test_a_repository_is_found_from_below_and_another_is_none(tmp_path: Path) -> None:
    assert start.code_around(ROOT / "merganser/methods") == ROOT
    for name in ("flows/__main__.py", "dvc.yaml", "merganser/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert start.code_around(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ducks"\n')
    assert start.code_around(tmp_path) is None


def in_clone(clone: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of this code in a folder of another clone."""
    code = "from merganser.command_line.start import start; start()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=clone / "tasks",
        env=environment() | {"PYTHONPATH": PYTHONPATH, "HOME": str(home)},
        capture_output=True,
        text=True,
    )


def test_a_clone_of_another_environment_runs_its_own_code_once_it_is_trusted(tmp_path: Path) -> None:
    clone, home = make_clone(tmp_path / "clone"), tmp_path / "home"
    file = clone / "flows/commands/cli.py"
    file.write_text(file.read_text() + "\nprint('code of the clone')\n")
    refused = in_clone(clone, home, "suites", "--help")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"`merganser trust {clone}`" in refused.stderr
    assert "make venv" in refused.stderr
    for words in (("--version",), ("check", ".")):  # of no repository
        assert "code of the clone" not in in_clone(clone, home, *words).stdout
    assert in_clone(clone, home, "trust", "..").returncode == 0
    done = in_clone(clone, home, "suites", "--help")
    assert "code of the clone" in done.stdout
    assert done.stderr.startswith(
        f"warning: this environment's merganser is that of {ROOT}, but this runs the code of the repository {clone}"
    )
    assert in_clone(clone, home, "trust", "--list").stdout == f"{clone}\n"
    assert in_clone(clone, home, "trust", "..", "--remove").returncode == 0
    assert in_clone(clone, home, "suites", "--help").returncode == 2


def test_a_comparison_that_new_made_beside_this_one_is_trusted(tmp_path: Path) -> None:
    clone, other = make_clone(tmp_path / "clone"), tmp_path / "other"
    git = ["git", "-C", str(clone), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    if not (clone / ".git").exists():
        subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(other)], check=True)
    assert is_trusted(other, clone)
    assert is_trusted(clone, other)
    assert not is_trusted(tmp_path / "elsewhere", clone)
    shutil.copytree(other, tmp_path / "copy")  # whose .git says that it is a worktree, which the clone's git denies
    assert not is_trusted(tmp_path / "copy", clone)
