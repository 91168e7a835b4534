"""Python as it is after `pip install .` without extras: what no declared dependency brings cannot be imported."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

from tests import PYTHONPATH
from tests.tiny import ROOT, environment

ABSENT = """
import sys

class Finder:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name in REFUSED else self._finder.find_spec(name, path, target)

sys.meta_path[:] = map(Finder, sys.meta_path)
"""


def distribution(name: str) -> str:
    """Return a distribution's name as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """Return the distributions that the library's dependencies bring, and theirs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    todo = [Requirement(each) for each in project["dependencies"]]
    while todo:
        wanted = todo.pop()
        if distribution(wanted.name) in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(distribution(wanted.name))
        try:
            todo += [Requirement(each) for each in requires(wanted.name) or ()]
        except PackageNotFoundError:  # one of another system's
            continue
    return found


@cache
def refused() -> frozenset[str]:
    """Return the packages installed here that an installation of the library alone lacks."""
    brought = declared()
    return frozenset({"dvcfleet"}).union(
        module
        for module, distributions in packages_distributions().items()
        if module != "merganser" and not brought & {distribution(each) for each in distributions}
    )


def run_light(folder: Path, code: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a piece of code in a folder, by a Python that has the declared dependencies only."""
    command = [sys.executable, "-c", f"REFUSED = {refused()!r}\n{ABSENT}\n{code}", *args]
    return subprocess.run(
        command, cwd=folder, env=environment() | {"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False
    )
