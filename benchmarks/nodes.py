"""Measure what a stage costs on a node beside its commands, by DVC's calls and by ours: `python -m benchmarks.nodes`.

The node is a fresh clone; the remote, a folder of this machine, holds all of a pipeline of N trivial stages in pairs.
Both sides do the same for one stage:

    load     read dvc.yaml
    fetch    copy its input from the remote       `dvc pull STAGE`
    ask      look whether it ran before           `dvc fetch --run-cache` and a look into the run cache
    push     copy its new output to the remote    `dvc push STAGE`
    save     add it to the remote's run cache     `dvc push --run-cache`
    judge    on the run's machine, without data: which of all stages would run   `dvc repro --dry --allow-missing`
"""

import argparse
import io
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stdout, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness import as_table
from dvcfleet.dvc_adapter.storing import save_inputs, save_output
from dvcfleet.planning.plan import make_plan
from dvcfleet.workspaces.nodes.node import present_run_key
from dvcfleet.workspaces.nodes.object_store import ObjectStore
from dvcfleet.workspaces.nodes.workspace import RecordedHashes

if TYPE_CHECKING:
    from dvc.repo import Repo

SIZES, TIMES = (100, 300, 900), 3
STEPS = ("load", "fetch", "ask", "push", "save", "judge")
NAME = "second7"
Actions = dict[str, Callable[[], object]]


def main() -> None:
    """Measure repositories of several sizes; print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, metavar="N", help=f"stages {SIZES}")
    parser.add_argument("--times", type=int, default=TIMES, help=f"how often each ({TIMES})")
    options = parser.parse_args()
    import dvc.repo  # which sets the level itself

    logging.getLogger(dvc.__name__).setLevel(logging.ERROR)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="nodes-bench-") as folder:
            source = _pushed_pipeline(Path(folder), size)
            runs = [{side: _measured(source, Path(folder), side) for side in _SIDES} for _ in range(options.times)]
        print(f"{size} stages, seconds (files copied), median of {options.times}:\n")
        print(as_table(("", *_SIDES, "DVC / ours"), [_row(step, runs) for step in STEPS]), end="\n\n", flush=True)


def _row(step: str, runs: list[dict[str, dict[str, tuple[float, int]]]]) -> list[str]:
    times = {side: median(run[side][step][0] for run in runs) for side in _SIDES}
    cells = [f"{times[side]:.3f} ({runs[0][side][step][1]})" for side in _SIDES]
    return [step, *cells, f"{times['DVC'] / times['ours']:.1f}"]


def _pushed_pipeline(folder: Path, size: int) -> Path:
    """Make a repository, run it, push all of it, and commit; return its path."""
    from dvc.repo import Repo

    source, stages = folder / "source", {}
    for number in range(size // 2):
        (source / "in").mkdir(parents=True, exist_ok=True)
        (source / f"in/{number}").write_text(f"{number}\n")
        first, second = f"first/{number}", f"second/{number}"
        stages[f"first{number}"] = {
            "cmd": f"mkdir -p first; cp in/{number} {first}", "deps": [f"in/{number}"], "outs": [first]
        }  # fmt: skip
        stages[f"second{number}"] = {"cmd": f"mkdir -p second; cp {first} {second}", "deps": [first], "outs": [second]}
    (source / "dvc.yaml").write_text(json.dumps({"stages": stages}, indent=1))
    _sh(source, "git", "init", "-q")
    _sh(source, sys.executable, "-m", "dvc", "init", "-q")
    _sh(source, sys.executable, "-m", "dvc", "remote", "add", "-q", "-d", "store", str(folder / "remote"))
    _sh(source, sys.executable, "-c", "from merganser.flows.commands.cli import main; main()", "run")
    _sh(source, sys.executable, "-m", "dvc", "push", "-q", "--run-cache")
    with chdir(source), Repo() as repo:
        ObjectStore(repo, print).open()
    _sh(source, "git", "add", "-A")
    _sh(source, "git", "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-qm", "all")
    return source


def _measured(source: Path, folder: Path, side: str) -> dict[str, tuple[float, int]]:
    """Return the seconds of each step, and how many files it brought to the node or to the remote."""
    from dvc.repo import Repo

    node, found = folder / "node", {}
    shutil.rmtree(node, ignore_errors=True)
    _sh(folder, "git", "clone", "-q", str(source), str(node))
    with chdir(node), Repo(str(node)) as repo:
        actions = _SIDES[side](repo)
        for step in STEPS:
            if step == "push":
                _write_output(repo)
            began, started = time.time(), time.monotonic()
            with redirect_stdout(io.StringIO()):  # where DVC says what it does
                actions[step]()
            seconds = time.monotonic() - started
            copied = [*(node / ".dvc/cache").rglob("*"), *(folder / "remote").rglob("*")]
            found[step] = seconds, sum(path.is_file() and path.stat().st_ctime >= began for path in copied)
    return found


def _write_output(repo: "Repo") -> None:
    """Have the stage's command done: a new output in the workspace and in the cache, its entry in dvc.lock."""
    stage = repo.stage.load_one("dvc.yaml", NAME)
    Path("second").mkdir(exist_ok=True)
    Path("second/7").write_text(f"{time.time()}")
    save_inputs(stage)
    save_output(stage.outs[0])
    stage.dump(update_pipeline=False)


def _by_dvc(repo: "Repo") -> Actions:
    from dvc.stage.cache import RunCacheNotFoundError

    def ask() -> None:
        repo.stage_cache.pull(None)
        with suppress(RunCacheNotFoundError):
            repo.stage_cache.restore(_find(repo), dry=True)

    def save() -> None:
        repo.stage_cache.save(_find(repo))
        repo.stage_cache.push(None)

    return {
        "load": lambda: repo.index.stages,
        "fetch": lambda: repo.pull("first7"),
        "ask": ask,
        "push": lambda: repo.push(NAME),
        "save": save,
        "judge": lambda: repo.reproduce(dry=True, allow_missing=True),
    }


def _find(repo: "Repo") -> Any:
    return next(stage for stage in repo.index.stages if stage.addressing == NAME)


def _by_ours(repo: "Repo") -> Actions:
    from dvc.stage.serialize import to_single_stage_lockfile

    store, stages = ObjectStore(repo, print), dict[str, Any]()
    (out,) = repo.stage.load_one("dvc.yaml", "first7").outs  # a node is sent its entry of dvc.lock

    def load() -> None:
        stages[NAME] = repo.stage.load_one("dvc.yaml", NAME)

    def fetch() -> None:
        store.fetch([out])
        out.checkout(force=True)

    def ask() -> None:
        save_inputs(stages[NAME])
        key = present_run_key(stages[NAME], ())
        assert key
        assert store.find_run(key)

    def push() -> None:
        save_output(stages[NAME].outs[0])
        store.push(stages[NAME].outs)

    def save() -> None:
        key = present_run_key(stages[NAME], ())
        assert key
        store.save_run(key, to_single_stage_lockfile(stages[NAME]))

    def judge() -> None:
        store.open()
        make_plan(repo, checks_for=RecordedHashes(repo, store).checks_for)

    return {"load": load, "fetch": fetch, "ask": ask, "push": push, "save": save, "judge": judge}


_SIDES: dict[str, Callable[["Repo"], Actions]] = {"DVC": _by_dvc, "ours": _by_ours}


def _sh(folder: Path, *command: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
