"""Run the tests with the mark `drill`."""

import subprocess
import sys
from pathlib import Path


def drill(folder: Path, sample: bool) -> None:
    """Run them all, in two processes; raises AssertionError if one fails."""
    assert not sample, "`make test` runs all the other tests: they are the sample"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "drill",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--durations",
        "10",
    ]
    assert subprocess.run([*command, "--basetemp", folder / "tests"], check=False).returncode == 0
