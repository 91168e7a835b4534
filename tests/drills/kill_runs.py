"""A small repository whose run is killed at each of its file operations."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.dvcfleet.toy import Toy
from tests.faults.injection import Injection
from tests.faults.whole import assert_cache_is_whole, content, finished
from tests.support import python

# Outputs in a shared folder, outputs that are folders, kept ones, and a stage that reads folders whole.
SMALL = """
stages:
  part:
    foreach: ${parts}
    do:
      cmd: mkdir part/${key} && echo ${key} > part/${key}/one && echo ${key} > part/${key}/two
      deps: [source, part/here]
      outs: ["part/${key}"]
  sum:
    foreach: ${parts}
    do:
      cmd: cat part/${key}/* > sums/${key}
      deps: ["part/${key}"]
      outs: ["sums/${key}"]
  kept:
    foreach: ${parts}
    do:
      cmd: mkdir -p kept/${key} && cp sums/${key} kept/${key}/.new && mv kept/${key}/.new kept/${key}/one
      deps: ["sums/${key}"]
      outs: ["kept/${key}": {persist: true}]
  all:
    cmd: find sums kept -type f | sort | xargs md5sum > all.txt
    deps: [kept, sums]
    outs: [all.txt]
"""
FILES = {"source": "s", "part/here": "", "sums/here": "", "params.yaml": "parts: {a: 1, b: 1}\n"}
LINKS = '[core]\n    analytics = false\n[cache]\n    type = "hardlink,symlink"\n'
# A fork of tests/warm.py leads the group that is killed, and counts from here on: what it was forked from may have
# imported another module of this name, as Debian's Python does.
RUN = """
import os, sys

if os.getpgrp() != os.getpid():
    os.setsid()
    sys.modules.pop("sitecustomize", None)

import sitecustomize
from pathlib import Path
from dvcfleet.run import run

sys.exit(run(repo=Path()))
"""


class RunKills:
    """Kill the run's own process; `links`: files are linked out of DVC's cache, not copied."""

    def __init__(self, folder: Path, links: bool) -> None:
        self._folder, self._links = folder, links
        self._injection = Injection(folder / "faults")
        calm = self._fresh("calm")
        self._injection.plan(calm.path, {}, log=True)
        assert self._start(calm).wait() == 0
        self.total = self._injection.counted()["run"]
        self._expected = content(calm.path)

    def trial(self, number: int, group: bool) -> bool:
        """Kill at one operation, with or without all its process group, and run again; whether the kill hit.

        Raises AssertionError if the second run does not end well, runs again what had ended, or leaves other bytes.
        """
        toy = self._fresh("killed")
        self._injection.plan(toy.path, {"run": number}, group)
        hit = self._start(toy).wait() == -signal.SIGKILL
        ended = finished(toy.path)
        code, text = toy.run(workers=2)
        assert code == 0, text
        assert not {name for name in ended if f"{name} done in" in text}, text
        assert content(toy.path) == self._expected
        assert_cache_is_whole(toy.path)
        assert toy.settled()
        shutil.rmtree(toy.path)
        return hit

    def _fresh(self, name: str) -> Toy:
        toy = Toy(self._folder / name, SMALL, FILES)
        if self._links:
            toy.write(".dvc/config", LINKS)
        return toy

    def _start(self, toy: Toy) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*python(), "-c", RUN],
            cwd=toy.path,
            env=os.environ | self._injection.variables,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )
