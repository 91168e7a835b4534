"""A comparison of three tasks that the tests of several stages share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import made_once
from tests.tasks.comparison import inside, make_comparison


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison that is ready to be recorded; no test may change it."""
    return made_once(tmp_path_factory, "comparison", make_comparison)


@pytest.fixture(scope="module")
def made(comparison: Path) -> Path:
    """Give what a file's tests copy: that comparison, if the file makes nothing of it."""
    return comparison


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Iterator[Path]:
    """Give a copy of it to change, and work in it."""
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    with inside(copy):
        yield copy
