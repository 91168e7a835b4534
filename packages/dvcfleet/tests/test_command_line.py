"""The console script `dvcfleet`, which is also `python -m dvcfleet`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group

from dvcfleet.command_line import complete_stage, new_app
from merganser.flows.commands.cli import app
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import LIMIT_S, python


def dvcfleet(folder: Path, *words: str, code: int = 0, program: str = "") -> str:
    """Run the command line in a folder; return what it printed."""
    command = [program] if program else [*python(), "-m", "dvcfleet"]
    done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def chain(toy: Make) -> Toy:
    return toy(CHAIN.replace("echo cut", "echo cutting; echo cut"), CHAIN_FILES)


def test_dvcfleet_runs_a_repository_and_says_what_is_up_to_date_and_what_was_printed(chain: Toy) -> None:
    script = str(Path(sys.executable).with_name("dvcfleet"))
    assert "3 done" in dvcfleet(chain.path, "run", "--workers", "2", program=script)
    assert chain.settled()
    states = json.loads(dvcfleet(chain.path, "status", "--json"))["counts"]
    assert states["up to date"] == 3
    assert "cutting" in dvcfleet(chain.path, "logs", "cut")


@pytest.mark.slow
def test_a_proxy_a_home_that_nothing_can_be_written_to_and_a_bare_path_are_no_obstacle(
    chain: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nothing answers
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setenv("HOME", "/proc/nobody")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "3 done" in dvcfleet(chain.path, "run", "--workers", "2")
    assert "nothing to do" in dvcfleet(chain.path, "run")


def test_without_git_the_message_says_what_to_do_and_it_does(chain: Toy) -> None:
    shutil.rmtree(chain.path / ".git")
    assert "`dvc config core.no_scm true` has DVC work without git" in dvcfleet(chain.path, "run", code=2)
    subprocess.run([*python(), "-m", "dvc", "config", "core.no_scm", "true"], cwd=chain.path, check=True)
    assert "3 done" in dvcfleet(chain.path, "run", "--workers", "2")


def test_the_exit_codes_tell_a_failure_from_a_mistake(chain: Toy, tmp_path: Path) -> None:
    assert 'did you mean "turn"?' in dvcfleet(chain.path, "run", "tunr", code=2)
    assert "not in a DVC repository" in dvcfleet(tmp_path, "status", code=2)
    chain.write("dvc.yaml", CHAIN.replace("echo cut", "exit 3; echo cut"))
    assert "cut failed: exit code 3" in dvcfleet(chain.path, "run", code=1)


def test_status_says_why_a_stage_is_not_up_to_date(chain: Toy) -> None:
    lines = dvcfleet(chain.path, "status").splitlines()
    assert lines[0].split() == ["stage", "state", "why"]
    assert lines[1].split(maxsplit=1) == ["cut", "stale  new stage"]
    assert lines[-1] == "3 stale"


def test_status_leaves_out_what_is_up_to_date_unless_it_is_asked_for(chain: Toy) -> None:
    dvcfleet(chain.path, "run")
    assert dvcfleet(chain.path, "status") == "3 up to date\n"
    assert len(dvcfleet(chain.path, "status", "--all").splitlines()) == 5
    chain.write("dvc.yaml", "stages: {}\n")
    assert dvcfleet(chain.path, "status").splitlines()[-1] == "no stages"


def test_both_command_lines_have_the_same_commands_of_the_engine() -> None:
    ours, merganser = (
        {name: {option.name for option in command.params} for name, command in get_group(one).commands.items()}
        for one in (new_app(), app)
    )
    assert set(ours) == {"run", "status", "logs", "node"}
    assert all(options <= merganser[name] for name, options in ours.items())


def test_the_names_of_stages_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete_stage("me") == []
    stages = "".join(f"  {name}:\n    cmd: a\n" for name in ("merge@ties", "merge@dare", "fetch"))
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{stages}")
    assert complete_stage("merge@") == ["merge@dare", "merge@ties"]
