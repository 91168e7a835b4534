"""Commands run in this process; the engine's toy repositories and its shared Prefect server."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from flows import cli
from tests.dvcfleet.conftest import toy

__all__ = ["toy"]


class Refused(Protocol):
    """Run a command that must exit with 2 in a folder; return what it said on standard error."""

    def __call__(self, folder: Path, *args: str) -> str: ...


class Done(Protocol):
    """Run a command that must exit with 0 in a folder; return what it said on standard output."""

    def __call__(self, folder: Path, *args: str) -> str: ...


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Done:
    def run(folder: Path, *args: str) -> str:
        _run(monkeypatch, folder, args, exit_code=0)
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    def run(folder: Path, *args: str) -> str:
        _run(monkeypatch, folder, args, exit_code=2)
        return capsys.readouterr().err

    return run


def _run(monkeypatch: pytest.MonkeyPatch, folder: Path, args: Sequence[str], exit_code: int) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["merganser", *args])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == exit_code
