"""A repository's commands run in this process; the engine's toy repositories and its shared Prefect server."""

from collections.abc import Callable

import pytest

from merganser.flows.commands import cli
from tests.command_line.conftest import Done, Refused, done, refused
from tests.dvcfleet.conftest import toy

__all__ = ["Done", "Refused", "done", "refused", "toy"]


@pytest.fixture
def command_line() -> Callable[[], None]:
    """Give the command line that `done` and `refused` run."""
    return cli.main
