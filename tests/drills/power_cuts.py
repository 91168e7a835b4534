"""Cut the power of a disk during runs and shortly after them, each time followed by a run with the same bytes.

The disk is an ext4 file system on a loop device that is shut down without writing its journal. Cut are runs of a small
repository, with DVC's cache in it and outside and with copies and links, and of the tiny comparison.
"""

import json
import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dvc.repo import Repo

from tests.drills.kills import prefect_server
from tests.faults.power import Disk, copy_of, new_disk, why_no_cuts
from tests.faults.whole import content, digest_of, entries, is_pure
from tests.support import python
from tests.tiny import environment, make_repository

TOYS, TINIES = 170, 30
# A file system writes what is a few seconds old by itself.
AFTER_S = 7.0
# How long after the end of a stage.
AMID_S = 1.5
# lockfiles.py of the engine: the longest wait for a sync; and that long for a busy machine to notice.
LOST_S = 2.0 + 60.0
SMALL = """
stages:
  part:
    foreach: ${parts}
    do:
      cmd: mkdir part/${key} && seq 1 5000 > part/${key}/one && echo ${key} > part/${key}/two
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
  score:
    cmd: wc -l < sums/a | sed 's/.*/{"lines":&}/' > score.json
    deps: [sums/a]
    metrics: [score.json: {cache: false}]
  all:
    cmd: find sums kept -type f | sort | xargs md5sum > all.txt
    deps: [kept, sums]
    outs: [all.txt]
"""
FILES = {"source": "s", "part/here": "", "sums/here": "", "params.yaml": "parts: {a: 1, b: 1, c: 1, d: 1}\n"}
CACHES = {
    "copies": "",
    "links": '[cache]\n    type = "hardlink,symlink"\n',
    "symlinks": '[cache]\n    type = "symlink"\n',
    "shared": "[cache]\n    dir = ../../shared\n",
}
TOY = """
import sys
from pathlib import Path
from dvcfleet.options import Options
from dvcfleet.run import run
sys.exit(run(Options(save_experiment=True), repo=Path(), workers=2))
"""
TINY = "from flows.__main__ import start; start()"
# What is not an output of a stage: MLflow's store, compiled code.
OTHERS = re.compile(r"^mlartifacts/|^mlflow\.db|(^|/)__pycache__/")
_ENDED = re.compile(r"\] (\S+) (?:done|restored)\b")


def make_toy(folder: Path, config: str) -> None:
    """Make the small repository, with this configuration of DVC."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    Repo.init(str(folder)).close()
    (folder / ".dvc/config").write_text(config)
    (folder / "dvc.yaml").write_text(SMALL)
    commit(folder)


def make_tiny(folder: Path) -> None:
    """Make the tiny comparison."""
    make_repository(folder)
    commit(folder)


def commit(folder: Path) -> None:
    """Commit all, so that a run is saved as an experiment."""
    git = ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)


@dataclass
class Started:
    """A run of a repository that was started: what it printed, and when each stage ended."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)
            if found := _ENDED.search(line):
                self.ended[found[1]] = time.monotonic()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait()
        self._reader.join()
        return code

    def is_amid(self, stages: int, seconds: float) -> bool:
        """Wait until so many stages have ended and so long after that; whether the run is still at work then."""
        while self.process.poll() is None and len(self.ended) < stages:
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is None


class Cuts:
    """A repository whose runs' power is cut; `make` makes it, `command` runs it, and `verify` checks the evidence."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[Path], None],
        command: Sequence[str],
        megabytes: int,
        verify: Sequence[str] = (),
    ) -> None:
        self._folder, self._command, self._verify = folder, command, verify
        self._mount, self._image = folder / "disk", folder / "fresh.img"
        folder.mkdir(parents=True)
        with new_disk(self._image, self._mount, megabytes) as disk:
            make(self._repository)
            subprocess.run(["sync", "-f", str(disk.path)], check=True)
        with copy_of(self._image, folder / "calm.img", self._mount):
            calm = self._start()
            assert calm.wait() == 0, "".join(calm.lines)
            self._stages = len(calm.ended)
            self._expected = self._bytes()

    @property
    def _repository(self) -> Path:
        return self._mount / "folder/repository"

    def trial(self, amid: bool, chance: random.Random) -> tuple[int, float]:
        """Cut a run in its middle, or within seconds after its end, and run again.

        Returns how many stages that had ended ran again, and for how long the one of these had ended that ended first.
        Raises AssertionError if the second run does not end well, leaves other bytes, or repeats what was synced.
        """
        with copy_of(self._image, self._folder / "trial.img", self._mount) as disk:
            run = self._start()
            if amid:
                amid = run.is_amid(chance.randint(0, self._stages), chance.uniform(0, AMID_S))
            if not amid:
                assert run.wait() == 0, "".join(run.lines)
                time.sleep(chance.uniform(0, AFTER_S))
            cut_at = time.monotonic()
            ended = dict(run.ended)
            self._cut(disk, run)
            second = self._start()
            assert second.wait() == 0, "".join(second.lines)
            again = {name: cut_at - ended[name] for name in second.ended if name in ended}
            assert amid or not second.ended, "".join(second.lines)
            assert max(again.values(), default=0.0) < LOST_S, again
            self._compare()
        return len(again), max(again.values(), default=0.0)

    def _cut(self, disk: Disk, run: Started) -> None:
        disk.cut()
        run.wait()

    def _start(self, command: Sequence[str] = ()) -> Started:
        environ = environment() | {"DVC_SITE_CACHE_DIR": str(self._mount / "site"), "PYTHONUNBUFFERED": "1"}
        (self._mount / "site").mkdir(exist_ok=True)
        return Started(
            subprocess.Popen(
                [*python(), *(command or self._command)],
                cwd=self._repository,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )

    def _bytes(self) -> dict[str, str]:
        """The digests of what is a pure function of the inputs: in the workspace and in dvc.lock."""
        found = content(self._repository).items()
        files = {name: digest for name, digest in found if is_pure(name) and not OTHERS.search(name)}
        outs = {f"{name}: {out['path']}": out["md5"] for name, out in self._outs() if is_pure(out["path"])}
        if any(not is_pure(out["path"]) for _, out in self._outs()):
            del files["dvc.lock"]
        return files | outs

    def _outs(self) -> list[tuple[str, dict[str, str]]]:
        return [(name, out) for name, entry in entries(self._repository).items() for out in entry["outs"]]

    def _compare(self) -> None:
        """Raise AssertionError if the workspace, dvc.lock, an object of it or git holds what it should not."""
        now = self._bytes()
        assert now == self._expected, sorted(now.items() ^ self._expected.items())
        with chdir(self._repository), pytest.MonkeyPatch.context() as patch:
            patch.setenv("DVC_SITE_CACHE_DIR", str(self._mount / "site"))
            with Repo() as repo:
                assert repo.status() == {}
                cache = Path(repo.cache.local.path)
        for name, out in self._outs():
            there = self._repository / out["path"]
            assert digest_of(there) == out["md5"], f"{name}: {out}"
            if (cache / out["md5"][:2] / out["md5"][2:]).exists():
                assert_object_is_whole(cache, out["md5"])
        checked = subprocess.run(["git", "fsck", "--full"], cwd=self._repository, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        refs = subprocess.run(
            ["git", "for-each-ref", "refs/exps"], cwd=self._repository, capture_output=True, text=True, check=True
        )
        assert refs.stdout
        if self._verify:
            verified = self._start(self._verify)
            assert verified.wait() == 0, "".join(verified.lines)


def assert_object_is_whole(cache: Path, value: str) -> None:
    """Raise AssertionError if an object of DVC's cache, or a file that it lists, has not the content of its name."""
    path = cache / value[:2] / value[2:]
    assert digest_of(path) == value.removesuffix(".dir"), path
    if value.endswith(".dir"):
        for entry in json.loads(path.read_text()):
            assert_object_is_whole(cache, entry["md5"])


def repositories(folder: Path) -> dict[str, Cuts]:
    """The repositories to cut, by what is told of them: the small one by its cache, and the tiny comparison."""
    toys = {
        f"the toy with {name}": Cuts(folder / name, lambda path, config=config: make_toy(path, config), ["-c", TOY], 96)
        for name, config in CACHES.items()
    }
    run, verify = ["-c", TINY, "run", "--workers", "2"], ["-c", TINY, "lineage", "verify"]
    return toys | {"the tiny comparison": Cuts(folder / "tiny", make_tiny, run, 700, verify)}


def try_cuts(cuts: Mapping[str, Cuts], counts: Mapping[str, int], chance: random.Random) -> None:
    """Cut each repository so often, and print what ran again; raises AssertionError if one does not end well."""
    total: Counter[str] = Counter()
    for name, count in counts.items():
        found = [cuts[name].trial(number % 2 == 0, chance) for number in range(count)]
        again, longest = sum(stages for stages, _ in found), max(lost for _, lost in found)
        print(f"{count:5} cuts of {name}: {again} stages that had ended ran again, after at most {longest:.1f} s")
        total["cuts"] += count
        total["again"] += again
    print(f"{total['cuts']:5} cuts, no lie; {total['again']} stages done again", flush=True)


def drill(folder: Path, sample: bool) -> None:
    """Try cuts; raises AssertionError if a run afterwards does not end well, with the same bytes."""
    if reason := why_no_cuts():
        pytest.skip(f"no power is cut here: {reason}")
    chance = random.Random(os.environ.get("CUTS_SEED", "0"))
    with prefect_server(folder / "prefect"):
        if sample:
            toy = Cuts(folder / "toy", lambda path: make_toy(path, ""), ["-c", TOY], 96)
            try_cuts({"the toy": toy}, {"the toy": 2}, chance)
            return
        toys = {f"the toy with {name}": TOYS // len(CACHES) for name in CACHES}
        try_cuts(repositories(folder), toys | {"the tiny comparison": TINIES}, chance)
