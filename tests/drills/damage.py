"""Damage each file that a repository's tools keep, in each way: the commands go on, or name the file."""

import os
import subprocess
from pathlib import Path

from tests import PYTHONPATH
from tests.drills.kills import prefect_server
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Toy
from tests.support import python
from tests.tiny import environment, make_repository, merganser


def drill(folder: Path, sample: bool) -> None:
    """Damage a toy and the tiny comparison in each way; in a sample a toy alone, in each way one of its files."""
    with prefect_server(folder / "prefect"):
        toy = Toy(folder / "toy", CHAIN, CHAIN_FILES)
        assert toy.run()[0] == 0
        try_all(toy.path, folder / "of-toy", sample)
        if not sample:
            comparison = make_repository(folder / "comparison")
            merganser(comparison, "run", "--workers", "2")
            try_all(comparison, folder / "of-comparison", sample)


def try_all(repository: Path, folder: Path, sample: bool) -> None:
    """Damage the files of copies of a finished repository; raises AssertionError, which says what is wrong."""
    command = [*python(), "-m", "tests.faults.damaged", str(repository), str(folder), *["--sample"] * sample]
    variables = environment() | {"PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=folder.parent, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    assert done.returncode == 0, done.stdout
