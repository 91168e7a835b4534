"""What a user has in the home, or names in the environment, is neither read nor written by the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.isolation import OWN_HOME
from tests.tiny import ROOT

# One puts a file into the hub's cache under a name that another asks for.
WATCHED = [
    "tests/flows/test_expected.py::test_deltas_are_in_float32_whatever_the_models_are_in",
    "tests/flows/test_expected.py::test_times_follow_from_the_size_of_the_base_and_the_examples_that_footers_count",
]
# And what other programs keep in a home, or read there: matplotlib, DVC, git.
RUN = f"""
import subprocess, sys, tests, matplotlib.pyplot, pytest
from dvc.repo import Repo

subprocess.run(["git", "init", "-q", sys.argv[1]], check=True)
Repo.init(sys.argv[1]).index
sys.exit(pytest.main(["-q", "-p", "no:xdist", "--basetemp=" + sys.argv[1] + "/tests", *{WATCHED!r}]))
"""


@pytest.mark.drill
def test_a_run_of_tests_leaves_the_home_and_what_the_environment_names_as_they_were(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / ".gitconfig").write_text("[this is not a configuration\n")  # nobody can read it without failing
    (home / ".config/dvc").mkdir(parents=True)
    (home / ".config/dvc/config").write_text("[neither is this\n")
    before = sorted(tmp_path.rglob("*"))
    named = {
        "HF_HOME": elsewhere / "hub",
        "DVC_SITE_CACHE_DIR": elsewhere / "dvc",
        "DVC_GLOBAL_CONFIG_DIR": home / ".config/dvc",
        "PREFECT_HOME": elsewhere / "prefect",
        "MLFLOW_TRACKING_URI": f"sqlite:///{elsewhere}/mlflow.db",
        "MPLCONFIGDIR": elsewhere / "matplotlib",
        "XDG_CACHE_HOME": elsewhere / "cache",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != OWN_HOME}
    environment = own | {name: str(path) for name, path in named.items()} | {"HOME": str(home)}
    command = [sys.executable, "-c", RUN, str(tmp_path / "ours")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = [path for path in sorted(tmp_path.rglob("*")) if not path.is_relative_to(tmp_path / "ours")]
    assert written == before
