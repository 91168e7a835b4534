"""The project's own stages on two tiny tasks, whose processes are killed at their file operations."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dvcfleet.messages import Outcome
from dvcfleet.planning.plan import plan
from dvcfleet.planning.resources import Resources
from dvcfleet.worker.fork_client import ForkServer
from dvcfleet.worker.jobs import make_job, run_job
from merganser.flows.comparison import MERGANSER
from tests.faults.injection import AT_EXIT, Injection
from tests.faults.whole import assert_cache_is_whole, digest_of, entries, finished, is_pure, remove
from tests.tiny import dvc, environment, make_repository

if TYPE_CHECKING:
    from dvc.stage import Stage

RUN = "from flows.__main__ import start; start()"
INSIDE = ("decompose@", "join@", "merge@")


class Tiny:
    """The tiny pipeline, run without a fault: what its stages write, and how many file operations each makes.

    `sections`: what params.yaml has in place of its own.
    """

    def __init__(self, folder: Path, *targets: str, sections: Mapping[str, Any] | None = None) -> None:
        self.injection = Injection(folder / "faults")
        self.path = make_repository(folder / "tiny")
        params = yaml.safe_load((self.path / "params.yaml").read_text()) | dict(sections or {})
        (self.path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        self.injection.plan(self.path, {}, log=True)
        done = self.run(self.path, *targets)
        assert done.returncode == 0, done.stdout
        self.counted = self.injection.counted()
        self.plan = plan(self.path)
        self.entries = entries(self.path)

    def run(self, folder: Path, *targets: str) -> "subprocess.CompletedProcess[str]":
        """Run `merganser run` in a repository like this one."""
        process = self.start(folder, *targets)
        said, _ = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, said)

    def start(self, folder: Path, *targets: str, **variables: str) -> "subprocess.Popen[str]":
        """Start `merganser run` in a process group of its own, with these environment variables besides."""
        return subprocess.Popen(
            [sys.executable, "-c", RUN, "run", "--workers", "2", *targets],
            cwd=folder,
            env=environment() | self.injection.variables | variables,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def compare(self, repository: Path) -> None:
        """Raise AssertionError if a stage of a repository has other bytes than this one's."""
        for name, entry in entries(repository).items():
            for now, before in zip(entry["outs"], self.entries[name]["outs"], strict=True):
                assert not is_pure(now["path"]) or now == before, f"{name}: {now} is not {before}"


class StageKills:
    """Kill one process of a real stage, which a real warm fork server started, and run the stage again."""

    def __init__(self, tiny: Tiny, server: ForkServer) -> None:
        self._tiny, self._server = tiny, server

    def points(self) -> list[tuple[str, int]]:
        """Every file operation of the stages that decompose, join and merge, and their exits."""
        stages = sorted(name for name in self._tiny.counted if name.startswith(INSIDE))
        return [(name, at) for name in stages for at in [*range(1, self._tiny.counted[name] + 1), AT_EXIT]]

    def trial(self, name: str, at: int) -> bool:
        """Kill a stage's process at one operation, then run the stage again; whether the kill hit.

        Raises AssertionError if it does not end well then, or with other bytes than without the kill.
        """
        hit = self.kill(name, at)
        self.finish(name)
        return hit

    def kill(self, name: str, at: int) -> bool:
        """Run a stage from nothing and kill its process at one operation; whether the kill hit."""
        stage = self._tiny.plan.stages[name]
        for out in stage.outs:
            remove(Path(out.fs_path))
        self._tiny.injection.plan(self._tiny.path, {name: at})
        return self._run(stage).exit_code == -signal.SIGKILL

    def kept(self, name: str) -> int:
        """Count the files that a stage left to be used when it is started again."""
        folders = [Path(out.fs_path) for out in self._tiny.plan.stages[name].outs if out.persist]
        return sum(path.is_file() for folder in folders for path in folder.rglob("*"))

    def finish(self, name: str) -> None:
        """Run a stage again; raises AssertionError if it ends badly, or with other bytes than without a kill."""
        self._tiny.injection.plan(self._tiny.path, {})
        ended = self._run(self._tiny.plan.stages[name])
        assert ended.exit_code == 0, ended.tail
        for out in self._tiny.entries[name]["outs"]:
            if is_pure(out["path"]):
                assert digest_of(self._tiny.path / out["path"]) == out["md5"], out["path"]

    def _run(self, stage: "Stage") -> Outcome:
        servers = (self._server.address, self._server.address)
        return run_job(replace(make_job(stage, Resources()), fork_servers=servers), lambda _line: None)


@contextmanager
def warm_server(tiny: Tiny) -> Iterator[ForkServer]:
    """A warm fork server whose stages count their operations."""
    before = dict(os.environ)
    os.environ.update(environment() | tiny.injection.variables)
    try:
        server = ForkServer(tiny.path, MERGANSER.preload, MERGANSER.variables(""))
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield server
    finally:
        server.stop()


class WaveKills:
    """Kill all stages of a level of the pipeline, level by level: the next run ends them and kills those after them."""

    def __init__(self, tiny: Tiny, folder: Path) -> None:
        self._tiny, self._folder = tiny, folder

    def go(self, moment: float | None) -> int:
        """Go through a fresh repository, killing each stage this far through its operations; None: at its exit.

        Returns how many kills hit. Raises AssertionError if a stage has other bytes afterwards than without.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        repository = make_repository(self._folder)
        hits = 0
        for level in self._levels():
            self._tiny.injection.plan(repository, {name: self._at(name, moment) for name in level})
            hits += self._tiny.run(repository).stdout.count(" failed: killed by signal 9")
            self._tiny.compare(repository)
        self._tiny.injection.plan(repository, {})
        done = self._tiny.run(repository)
        assert done.returncode == 0, done.stdout
        self._tiny.compare(repository)
        assert entries(repository).keys() == self._tiny.entries.keys()
        assert_cache_is_whole(repository)
        return hits

    def _at(self, name: str, moment: float | None) -> int:
        return AT_EXIT if moment is None else 1 + round(moment * max(0, self._tiny.counted[name] - 1))

    def _levels(self) -> Iterator[list[str]]:
        """The stages that read from no other, then those that read from these only, and so on."""
        depth: dict[str, int] = {}
        for name, node in self._tiny.plan.planned.items():
            depth[name] = 1 + max((depth[need] for need in node.needs), default=0)
        for level in range(1, max(depth.values()) + 1):
            yield [name for name in depth if depth[name] == level]


def kill_at_moments(tiny: Tiny, folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Kill a fresh repository's run, with all its processes, each time after some more stages; whether the kill hit.

    Raises AssertionError if it does not end well then, or with other bytes than without the kills.
    """
    repository = make_repository(folder)
    for _ in range(count):
        wanted, delay = len(finished(repository)) + chance.randint(1, 5), chance.uniform(0, 1)
        run = tiny.start(repository)
        while run.poll() is None and len(finished(repository)) < wanted:
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            run.wait(delay)
        yield run.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
    done = tiny.run(repository)
    assert done.returncode == 0, done.stdout
    tiny.compare(repository)
    assert json.loads(dvc(repository, "status", "--json")) == {}
