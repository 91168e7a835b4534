"""A real cluster on this machine whose nodes are clones that share nothing but a DVC remote, and its drill.

`python -m tests.faults.nodes` runs a comparison by Ray and by Dask on a head and some nodes, kills one with
SIGKILL in the middle, and prints how the hashes compare with those of a local run and how often each stage ran.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import Repo

from dvcfleet.process_settings import without_own
from dvcfleet.workspaces.nodes.clone import make_node
from merganser.config.loading import load_params
from merganser.config.points import write_points
from tests import PYTHONPATH
from tests.dvcfleet.cluster import SELDOM, address_in, free_port
from tests.dvcfleet.conftest import RAY_TOKEN
from tests.dvcfleet.toy import Toy
from tests.support import python, start, wait_until
from tests.tiny import ROOT, dvc, environment, forking_environment, make_repository
from tests.warm import Started

# What a node prints when it has joined.
_READY = {"dask": "Registered to", "ray": "Ray runtime started"}
_HEAD_READY = {"dask": "Scheduler at", "ray": "Ray runtime started"}
# Ray's head, nodes and drivers have to show one another the same.
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": RAY_TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
# Run a module on a host of a name that is not this machine's.
_NAMED = """
import ctypes, runpy, socket, sys
_, name, *sys.argv = sys.argv
CLONE_NEWUTS = 0x04000000
assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0
socket.sethostname(name)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Outputs that hold times, run numbers, and what shows them.
IMPURE = ("data/profiles/", "data/records/", "report", "metrics.json")


@dataclass(frozen=True)
class Has:
    """What a node declares; its GPUs are made up."""

    threads: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()


@dataclass
class Cluster:
    """A scheduler and nodes; `address` is what `--address` wants.

    `prefix` goes before commands, for a head elsewhere than at `host` on loopback.
    """

    kind: str
    folder: Path
    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    address: str = ""
    nodes: list[Started] = field(default_factory=list)
    _others: list[Started] = field(default_factory=list)
    # The paths of Ray's sockets may not be long.
    _sockets: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="mr-"))

    def add(
        self,
        clone: Path,
        name: str,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        has: "Has | None" = None,
        hostname: str = "",
    ) -> None:
        """Start a node whose worker serves a clone; without `has`, with two threads and all of the machine.

        `hostname`: what its machine is called, if not as this one is.
        """
        threads = str(has.threads if has else 2)
        if self.kind == "dask":
            command = ["-m", "distributed.cli.dask_worker", self.address, "--no-nanny", "--nthreads", threads]
            command += ["--host", host, "--no-dashboard", "--name", name]
            command += ["--memory-limit", str(has.memory_bytes)] if has else []
        else:
            command = ["-m", "ray.scripts.scripts", "start", "--address", self.address, "--num-cpus", threads]
            command += ["--block", "--disable-usage-stats"]
            command += ["--memory", str(has.memory_bytes), "--num-gpus", str(len(has.gpus))] if has else []
        if hostname:
            command = ["-c", _NAMED, hostname, *command[1:]]
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(has.gpus)} if has else {}
        self.nodes.append(self._start(command, clone, name, prefix, seen))
        self._wait_for(name, _READY[self.kind])

    def kill(self, number: int) -> None:
        """Kill a node with all its processes, as a power cut does."""
        node = self.nodes[number]
        for process in [*_descendants(node.pid), node.pid]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        node.wait()

    def start_head(self) -> None:
        """Start what the nodes and the run connect to; it runs no stage itself."""
        if self.kind == "dask":
            command = ["-m", "distributed.cli.dask_scheduler", "--host", self.host, "--port", "0", "--no-dashboard"]
        else:
            port = free_port()
            command = ["-m", "ray.scripts.scripts", "start", "--head", "--port", str(port), "--num-cpus", "0"]
            command += ["--node-ip-address", self.host, "--include-dashboard=false", "--disable-usage-stats"]
            command += ["--block", "--temp-dir", self._sockets]
            self.address = f"{self.host}:{port}"
        self._others.append(self._start(command, self.folder, "head", self.prefix))
        self._wait_for("head", _HEAD_READY[self.kind])
        if self.kind == "dask":
            self.address = address_in(self.folder / "head.log")

    def stop(self) -> None:
        """End everything that was started."""
        for process in [*self.nodes, *self._others]:
            for pid in [*_descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _wait_for(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        wait_until(lambda: words in log.read_text(errors="replace"))

    def _start(
        self, command: list[str], cwd: Path, name: str, prefix: tuple[str, ...], seen: Mapping[str, str] | None = None
    ) -> Started:
        # A node may join during a run of this process.
        variables = without_own(environment()) | {"PYTHONPATH": PYTHONPATH, "DVCFLEET_NODE": str(cwd)}
        variables |= _TOKEN | SELDOM | dict(seen or {})
        with open(self.folder / f"{name}.log", "wb") as log:
            if not prefix:
                return start(command, cwd, variables, log.fileno(), log.fileno())
            return subprocess.Popen(
                [*_started_by(prefix), *command],
                cwd=cwd,
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@contextmanager
def cluster(kind: str, folder: Path, clones: list[Path]) -> Iterator[Cluster]:
    """Give a cluster with a node for each clone."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Cluster(kind, folder)
    try:
        made.start_head()
        for number, clone in enumerate(clones):
            made.add(clone, f"node{number}")
        yield made
    finally:
        made.stop()


def share(source: Path, folder: Path, nodes: int = 2, remote: Mapping[str, str] | None = None) -> list[Path]:
    """Commit all of a repository, give it a DVC remote, and return clones of it: the run's, and one for each node.

    `remote`: what DVC's configuration says of it; a folder here if not given.
    """
    (folder / "remote").mkdir(parents=True)
    with chdir(source), Repo() as repo, repo.config.edit("repo") as config:
        config["remote"] = {"store": dict(remote or {"url": str(folder / "remote")})}
        config["core"]["remote"] = "store"
    with chdir(source), Repo() as repo:
        repo.push()
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "all")
    clones = [clone(source, folder / name) for name in ("flow", *(f"clone{number}" for number in range(nodes)))]
    for made in clones[1:]:
        make_node(made)
    return clones


def clone(source: Path, folder: Path) -> Path:
    """Clone a repository into a new folder; return it."""
    subprocess.run(["git", "clone", "-q", str(source), str(folder)], check=True)
    return folder


def git(folder: Path, *args: str) -> str:
    """Run git as somebody."""
    command = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@localhost", *args]
    return subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout


# Some stages of a second each, one of which reads the others' folder whole.
TOY = """
stages:
  part:
    foreach: [a, b, c, d, e, f]
    do: {cmd: "mkdir -p part; sleep 1; cat source > part/${item}", deps: [source], outs: ["part/${item}"]}
  whole: {cmd: cat part/* > whole.txt, deps: [part], outs: [whole.txt]}
"""


def toy_source(folder: Path) -> Path:
    """Make a repository of some trivial stages."""
    return Toy(folder, TOY, {"source": "s"}).path


def tiny_source(folder: Path) -> Path:
    """Make the tiny comparison's repository, its checkpoints and data tracked by DVC."""
    source = make_repository(folder)
    sources = [
        str(path.relative_to(source)) for name in ("hub", "datasets") for path in sorted((source / name).iterdir())
    ]
    dvc(source, "add", "-q", *sources)
    return source


def study_source(folder: Path) -> Path:
    """Make the tiny comparison's repository with three methods and a sweep of sixty points."""
    source = tiny_source(folder)
    path = source / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params["methods"] = {name: params["methods"][name] for name in ("average", "ties", "dts_d")}
    params["studies"]["sweeps"] = {
        "density": {"method": "ties", "reads": "deltas", "over": {"density": [n / 60 for n in range(1, 61)]}}
    }
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    write_points(load_params(path), source)
    return source


def embedded_source(folder: Path) -> Path:
    """Make the embedded comparison's repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


SOURCES = {"toy": toy_source, "tiny": tiny_source, "study": study_source, "embedded": embedded_source}


def run(folder: Path, *args: str, prefix: tuple[str, ...] = (), **variables: str) -> "subprocess.Popen[str]":
    """Start a run in a folder."""
    command = [*_started_by(prefix), "-m", "merganser.flows", "run", *args]
    path = {"PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=forking_environment() | path | _TOKEN | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _started_by(prefix: tuple[str, ...]) -> list[str]:
    """Return the command that starts Python, after a prefix such as one that enters a network of its own."""
    return [*prefix, sys.executable] if prefix else python()


def hashes(folder: Path) -> dict[str, Any]:
    """Return the hashes of all reproducible outputs, of every dvc.lock in a folder."""
    found = {}
    for lock in sorted(folder.rglob("dvc.lock")):
        for name, stage in yaml.safe_load(lock.read_text())["stages"].items():
            for out in stage.get("outs", []):
                if not out["path"].startswith(IMPURE):
                    found[f"{lock.parent.relative_to(folder)}:{name} {out['path']}"] = out["md5"]
    return found


def _descendants(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def entries(folder: Path) -> int:
    """Return how many stages a run has ended so far."""
    journal, lock = folder / ".dvcfleet/journal", folder / "dvc.lock"
    found = set()
    if journal.exists():
        found |= {
            json.loads(line)["name"] for line in journal.read_text().splitlines(keepends=True) if line[-1] == "\n"
        }
    if lock.exists():
        found |= set(yaml.safe_load(lock.read_text()).get("stages", {}))
    return len(found)


def main() -> None:
    """Run the drill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", choices=["ray", "dask"], action="append", help="both if none is given")
    parser.add_argument("--suite", choices=list(SOURCES), default="embedded")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if not given")
    parser.add_argument("--kill-after", type=int, default=40, metavar="N", help="stages ended before a node is killed")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="nodes of each cluster")
    parser.add_argument("--limit", type=float, default=3600, metavar="S", help="seconds for each cluster's run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nodes-") as temporary:
        folder = given.folder or Path(temporary)
        source = SOURCES[given.suite](folder / "source")
        local = Path(shutil.copytree(source, folder / "local", symlinks=True))
        process = run(local)
        print(process.communicate()[0], flush=True)
        if process.returncode:
            sys.exit("the local run did not end well: there is nothing to compare with")
        ended = [
            drill(
                runner,
                Path(shutil.copytree(source, folder / runner / "source", symlinks=True)),
                local,
                given.kill_after,
                given.limit,
                number=given.nodes,
            )
            for runner in given.runner or ["ray", "dask"]
        ]
    sys.exit(not all(ended))


def drill(
    runner: str,
    source: Path,
    local: Path,
    kill_after: int,
    limit_s: float = 3600,
    remote: Mapping[str, str] | None = None,
    number: int = 2,
) -> bool:
    """Run a comparison on a number of nodes, kill one; print the result, and tell if it is as a local run.

    A run that has not ended `limit_s` after its start fails.
    """
    flow, *clones = share(source, source.parent, number, remote)
    began = time.monotonic()
    with cluster(runner, source.parent / "cluster", clones) as nodes:
        process = run(flow, "--runner", runner, "--address", nodes.address)
        try:
            wait_until(lambda: process.poll() is not None or entries(flow) >= kill_after, limit_s)
            assert process.poll() is None, process.communicate()[0]
            nodes.kill(0)
            print(f"{runner}: killed a node after {entries(flow)} stages", flush=True)
            said, _ = process.communicate(timeout=max(1, began + limit_s - time.monotonic()))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                print(process.communicate()[0])
    print(said)
    wanted, got = hashes(local), hashes(flow)
    times = Counter(name for clone in clones for name in left(clone))
    twice = sorted(name for name, count in times.items() if count > 1)
    same = sum(wanted[name] == got.get(name) for name in wanted)
    took = f"exit code {process.returncode} in {time.monotonic() - began:.0f} s"
    print(f"{runner}: {took}; {same} of {len(wanted)} hashes agree")
    print(f"{runner}: {len(times)} stages ended on nodes; more than once: {twice or 0}", flush=True)
    return process.returncode == 0 and same == len(wanted) and not twice


def left(clone: Path) -> list[str]:
    """Return the stages whose outputs a node left on the remote, as its log has them."""
    log = clone / ".dvcfleet/node/log"
    return [line.split(" ", 1)[1] for line in log.read_text().splitlines()] if log.exists() else []


if __name__ == "__main__":
    main()
