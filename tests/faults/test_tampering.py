"""A sample of the tamperings of docs/tamperings.md is found; a drill holds the tables to all of them."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import PYTHONPATH
from tests.faults.tamperings import TAMPERINGS
from tests.support import python
from tests.tiny import ROOT, environment

SAMPLE = ("params_removed", "second_model_hidden")


def _tried(repository: Path, *options: str) -> str:
    variables = environment() | {"PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])}
    command = [*python(), "-m", "tests.faults.tampering", str(repository), *options]
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.drill
def test_a_sample_of_the_tamperings_is_found(tiny_run: Path) -> None:
    said = _tried(tiny_run, "--workers", "1", "--only", *SAMPLE)
    assert "`verify` finds 2 of 2 edits. 1 of the 2 change several files consistently" in said
    for words in (
        "parameter averaging, coefficients, density and 3 more is not there any more",
        "unknown file: data/merged/ties/extra.safetensors: ",
    ):
        assert words in said


def test_there_are_a_hundred_tamperings_of_which_thirty_are_of_several_files() -> None:
    assert len(TAMPERINGS) >= 100
    assert sum(each.is_consistent for each in TAMPERINGS.values()) >= 30


@pytest.mark.drill
def test_all_tamperings_are_found_as_the_table_says(tiny_run: Path) -> None:
    print(_tried(tiny_run, "--check"))
