"""Commands run in this process: those that need no repository."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from merganser.command_line.app import main


class Refused(Protocol):
    """Run a command that must exit with 2 in a folder; return what it said on standard error."""

    def __call__(self, folder: Path, *args: str) -> str: ...


class Done(Protocol):
    """Run a command that must exit with 0 in a folder; return what it said on standard output."""

    def __call__(self, folder: Path, *args: str) -> str: ...


@pytest.fixture
def command_line() -> Callable[[], None]:
    """Give the command line that `done` and `refused` run."""
    return main


@pytest.fixture
def done(command_line: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Done:
    def run(folder: Path, *args: str) -> str:
        _run(command_line, monkeypatch, folder, args, exit_code=0)
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(
    command_line: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    def run(folder: Path, *args: str) -> str:
        _run(command_line, monkeypatch, folder, args, exit_code=2)
        return capsys.readouterr().err

    return run


def _run(
    command_line: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    args: Sequence[str],
    exit_code: int,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["merganser", *args])
    with pytest.raises(SystemExit) as left:
        command_line()
    assert left.value.code == exit_code
