"""What `make run` says and does before there is anything but a shell."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the Makefile and an environment as it stands after a set-up."""
    folder = tmp_path / "a"
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "packages/dvcfleet").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "packages/dvcfleet/pyproject.toml", "constraints.txt"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    python = folder / ".venv/bin/python"
    python.touch(0o755)
    (folder / ".venv/bin/merganser").write_text(f"#!{python}\n")
    (stamp,) = re.findall(r"touch \"(\S+)\"", make(folder, "-n", "venv"))
    (folder / stamp).touch()
    return folder


def make(folder: Path, *words: str) -> str:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }  # of `make test`
    done = subprocess.run(
        ["make", "VENV=.venv", *words], cwd=folder, env=own, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_run_says_before_it_installs_what_it_will_do_how_long_and_where_to_look(clone: Path) -> None:
    said = make(clone, "outlook")
    assert "10 to 15 minutes and 1 GB on two cores" in said
    assert ".dvcfleet/so-far/index.html" in said
    assert "environment" not in said
    (clone / "constraints.txt").write_text("numpy==2\n")
    assert make(clone, "outlook").startswith("first the environment, .venv: a minute or two and 7 GB")
    assert make(clone, "-n", "run").index("first the environment") < make(clone, "-n", "run").index("setting up .venv")
    (clone / "data").mkdir()
    assert make(clone, "outlook").count("\n") == 1


def test_an_environment_in_a_folder_that_moved_is_made_anew(clone: Path) -> None:
    assert "setting up" not in make(clone, "-n", "run")
    moved = clone.rename(clone.with_name("b"))
    assert "setting up .venv" in make(moved, "-n", "run")
    assert make(moved, "moved") == "the Python that .venv names is gone, as in a folder that moved: it is made anew\n"
    assert not (moved / ".venv").exists()
