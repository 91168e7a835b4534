"""A small DVC repository to try the engine on."""

import hashlib
import io
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from rich.console import Console

from dvcfleet.options import Options
from dvcfleet.planning.plan import Plan, plan
from dvcfleet.run import run as run_stages
from tests.support import copy_repository, made_once


@cache
def _empty() -> "tempfile.TemporaryDirectory[str]":
    """Make a repository without stages in a folder that is removed at exit: a copy takes a seventh of the time."""
    folder = tempfile.TemporaryDirectory(prefix="merganser-toy-")
    subprocess.run(["git", "init", "-q", f"{folder.name}/empty"], check=True)
    Repo.init(f"{folder.name}/empty").close()
    return folder


class Printed(io.StringIO):
    """What a run prints; as soon as it has printed some words, `then` is called, once."""

    def __init__(self, words: str = "", then: Callable[[], object] | None = None) -> None:
        super().__init__()
        self._words, self._then = words, then

    def write(self, text: str) -> int:
        length = super().write(text)
        if self._then and self._words in self.getvalue():
            then, self._then = self._then, None
            then()
        return length


class Toy:
    """A DVC repository whose stages are shell commands; `log` in it says which ran, in their order."""

    def __init__(self, path: Path, dvc_yaml: str, files: dict[str, str]) -> None:
        self.path = path
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        copy_repository(Path(_empty().name) / "empty", path)
        for name, text in files.items():
            self.write(name, text)
        self.write("dvc.yaml", dvc_yaml)

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        # A file of DVC's cache may be linked here: a new one takes its place, as an editor would do it.
        file.unlink(missing_ok=True)
        file.write_text(text)

    def read(self, name: str) -> str:
        return (self.path / name).read_text()

    def ran(self) -> list[str]:
        """The stages that ran since this was last asked."""
        log = self.path / "log"
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return names

    def run(self, *targets: str, printed: Printed | None = None, **options: Any) -> tuple[int, str]:
        """Run; return the exit code and what was printed."""
        text = printed or Printed()
        console = Console(file=text, highlight=False, width=1000)
        asked = {each.name: options.pop(each.name) for each in fields(Options) if each.name in options}
        request = Options(targets, **asked)
        code = run_stages(request, repo=self.path, console=console, **({"workers": 2} | options))
        return code, text.getvalue()

    def plan(self, targets: Sequence[str] = (), force: bool = False) -> Plan:
        return plan(self.path, Options(tuple(targets), force=force))

    def states(self) -> dict[str, str]:
        return {stage.name: stage.state.value for stage in self.plan().planned.values()}

    def reasons(self, name: str) -> list[str]:
        return list(self.plan().planned[name].reasons)

    def settled(self) -> bool:
        """Whether DVC too finds nothing to do."""
        with chdir(self.path), Repo() as repo:
            return repo.status() == {} and repo.reproduce() == []


class Make:
    """Make toy repositories in a folder."""

    def __init__(self, folder: Path, factory: pytest.TempPathFactory) -> None:
        self._folder, self._factory = folder, factory

    def __call__(self, dvc_yaml: str, files: dict[str, str], name: str = "toy") -> Toy:
        return Toy(self._folder / name, dvc_yaml, files)

    def ran(
        self, dvc_yaml: str, files: dict[str, str], before: Callable[[Toy], object] | None = None, **options: Any
    ) -> Toy:
        """Give a copy of a repository that was run, once in a session, after `before`; its `log` says so."""

        def run(folder: Path) -> None:
            made = Toy(folder, dvc_yaml, files)
            if before:
                before(made)
            code, text = made.run(**options)
            assert code == 0, text

        words = json.dumps([dvc_yaml, files, before and before.__name__, options])
        name = f"toy-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
        return Toy(copy_repository(made_once(self._factory, name, run), self._folder / "toy"), "", {})

    def copy_of(self, other: Toy) -> Toy:
        shutil.copytree(other.path, self._folder / "copy", symlinks=True)
        return Toy(self._folder / "copy", "", {})


CHAIN = """
stages:
  cut:
    cmd: echo cut >> log; head -c 3 source > cut.txt
    deps: [source]
    outs: [cut.txt]
  turn:
    cmd: echo turn >> log; mkdir turned; rev cut.txt > turned/text
    deps: [cut.txt]
    params: [turn.times]
    outs: [turned]
  end:
    cmd: echo end >> log; cat turned/* > end.txt
    deps: [turned]
    outs: [end.txt]
"""
CHAIN_FILES = {"source": "abcdef", "params.yaml": "turn: {times: 1, more: {deep: 1}}\n"}

# Stages that take a second each, for what happens meanwhile; the files say which there are.
SLOW = """
stages:
  each:
    foreach: ${parts}
    do:
      cmd: echo ${key} >> log; sleep 1; echo ${key} > ${key}.part
      deps: [source]
      outs: ["${key}.part"]
"""


def slow_files(names: str) -> dict[str, str]:
    """Give the files for slow stages of these names, a letter each."""
    return {"source": "s", "params.yaml": yaml.safe_dump({"parts": dict.fromkeys(names, 1)})}
