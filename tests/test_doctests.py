"""The examples in the kernels' docstrings, run as doctests."""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGES = ("linalg", "operators", "methods", "measures", "evaluation", "report")
ROOT = Path(__file__).parents[1]
GIVEN = {"torch": "torch", "np": "numpy"}  # what the examples need not import
FILES = sorted(file for package in PACKAGES for file in (ROOT / "merganser" / package).glob("[!_]*.py"))
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES if ">>>" in file.read_text()]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(
        module, extraglobs={name: importlib.import_module(module) for name, module in GIVEN.items()}
    )
    assert found.attempted
    assert not found.failed
