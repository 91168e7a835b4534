"""A comparison of three tasks that the tests of several stages share."""

from pathlib import Path

import pytest

from tests.shared import made_once
from tests.tasks.comparison import make_comparison


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison that is ready to be recorded; no test may change it."""
    return made_once(tmp_path_factory, "comparison", make_comparison)
