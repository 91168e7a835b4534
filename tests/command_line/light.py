"""Python as it is after `pip install .`, alone or with extras: what no dependency brings cannot be imported."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
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


def declared(*extras: str) -> set[str]:
    """Return the distributions that the dependencies of the library and of extras bring, and theirs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
    todo = [Requirement(each) for group in groups for each in group]
    found: set[tuple[str, frozenset[str]]] = set()
    while todo:
        wanted = todo.pop()
        key = distribution(wanted.name), frozenset(wanted.extras)
        if key not in found:
            found.add(key)
            todo += _needed(wanted)
    return {name for name, _ in found}


def _needed(wanted: Requirement) -> Iterator[Requirement]:
    """Give what a distribution needs with the extras asked for; nothing if it is one of another system."""
    with suppress(PackageNotFoundError):
        for needed in map(Requirement, requires(wanted.name) or ()):
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                yield needed


@cache
def refused(*extras: str) -> frozenset[str]:
    """Return the packages installed here that an installation of the library with some extras lacks."""
    brought = declared(*extras)
    return frozenset({"dvcfleet"} - brought).union(
        module
        for module, distributions in packages_distributions().items()
        if module not in ("dvcfleet", "merganser") and not brought & {distribution(each) for each in distributions}
    )


def run_light(folder: Path, code: str, *args: str, extras: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run a piece of code in a folder, by a Python that has the dependencies of the library and of extras only."""
    command = [sys.executable, "-c", f"REFUSED = {refused(*extras)!r}\n{ABSENT}\n{code}", *args]
    return subprocess.run(
        command, cwd=folder, env=environment() | {"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False
    )
