"""A year of nights: a schedule's flow on a toy comparison by a clock that moves a day at a time.

Real runs with a real Prefect server and its database; `merganser gc` frees what is older than a month. The date is
moved in all processes by `moved_clock.c`, which takes a C compiler.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import PYTHONPATH

NIGHTS, SAMPLE = 400, 6
MONTH = 28  # nights from one `gc` to the next
STAGES = """
stages:
  score:
    cmd: "head -c 20000 source > model; echo '{\\"ties\\": {\\"mean\\": '$(wc -l < source)'}}' > metrics.json"
    deps: [source]
    outs: [model]
    metrics: [{metrics.json: {cache: false}}]
  report:
    cmd: mkdir -p report; cp metrics.json report/index.html
    deps: [model, metrics.json]
    outs: [report]
"""
ROOT = Path(__file__).parents[2]


def drill(folder: Path, sample: bool) -> None:
    """Run 400 nights, some in a sample, and hold what is left of them to what is left of the first hundred."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for tests/drills/moved_clock.c")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "moved_clock.so"
    source = Path(__file__).with_name("moved_clock.c")
    subprocess.run([compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    moved = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(folder / "clock"), "PYTHONPATH": PYTHONPATH}
    set_clock(folder, 0)
    nights = SAMPLE if sample else NIGHTS
    command = [sys.executable, "-m", "tests.drills.nights", str(folder), str(nights)]
    subprocess.run(command, env=_without_servers() | moved, cwd=folder, check=True)
    counted = [json.loads(line) for line in (folder / "counts.jsonl").read_text().splitlines()]
    assert len(counted) == nights
    assert all(one["state"] == "COMPLETED" for one in counted)
    if not sample:
        early, late = counted[: NIGHTS // 4], counted[-NIGHTS // 4 :]
        for name in ("flow runs", "experiments", "ledger lines", "objects", "run cache", "bytes"):
            most = [max(one[name] for one in some) for some in (early, late)]
            assert most[1] <= 1.1 * most[0], f"{name}: {most[1]} at most in the last hundred nights, {most[0]} before"


def _without_servers() -> dict[str, str]:
    mine = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "DVCFLEET_RUN", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in mine}


def set_clock(folder: Path, day: int) -> None:
    """Move the clock of the drill's processes, in place: they have mapped the file."""
    with os.fdopen(os.open(folder / "clock", os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
        file.write((day * 86_400).to_bytes(8, sys.byteorder))


def run_nights(folder: Path, nights: int) -> None:
    """Run each night in a process of its own, as a schedule does, by one server; print counts of some of them."""
    from dvcfleet.prefect_adapter.server import PrefectServer

    project = make_project(folder / "project")
    with PrefectServer(project / ".dvcfleet/prefect", schedules=True) as server:
        server.wait()
        os.environ.update(server.environment)
        import merganser.flows.scheduled  # noqa: F401 - for all nights' processes, which are forks of this one

        for night in range(1, nights + 1):
            set_clock(folder, night)
            (project / "source").write_text("x" * 20_000 + f"{night:05}" + "\n" * (1 + night % 7))
            began = _cpu_seconds()
            state = in_child(partial(_run, project))
            took = _cpu_seconds() - began
            if night % MONTH == 0 or nights == SAMPLE:
                assert in_child(partial(_free, project, 2 if nights == SAMPLE else MONTH)) == "COMPLETED"
            counted = {"night": night, "state": state, "CPU seconds": round(took, 2), **counts(project)}
            with (folder / "counts.jsonl").open("a") as file:
                file.write(json.dumps(counted) + "\n")
            if night == 1 or night % 100 == 0 or nights == SAMPLE:
                print(", ".join(f"{name} {value}" for name, value in counted.items()), flush=True)


def make_project(path: Path) -> Path:
    """Make a committed repository."""
    from dvc.repo import Repo

    path.mkdir()
    git = ["git", "-C", str(path), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    Repo.init(str(path)).close()
    (path / "dvc.yaml").write_text(STAGES)
    (path / "source").write_text("")
    for command in (["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *command], check=True)
    return path


def in_child(work: Callable[[], str]) -> str:
    """Do something in a fork of this process; return what it returns."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(theirs, work().encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def _run(project: Path) -> str:
    from merganser.flows.scheduled import scheduled

    with _quiet():
        state = scheduled(repo=project, workers=1, busy="skip", save_experiment=True, return_state=True)
    return str(state.type.value)


def _free(project: Path, days: int) -> str:
    from merganser.flows.scheduled import free

    with _quiet():
        state = free(keep=f"{days}d", repo=project, return_state=True)
    return str(state.type.value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Write what the flow logs into a file."""
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)


def counts(project: Path) -> dict[str, int]:
    """Count what the nights have left in a repository."""
    import sqlite3
    from contextlib import closing

    state = project / ".dvcfleet"
    with closing(sqlite3.connect(f"file:{state}/prefect/prefect.db?mode=ro", uri=True)) as connection:
        (runs,) = connection.execute("SELECT count(*) FROM flow_run").fetchone()
    refs = subprocess.run(
        ["git", "-C", str(project), "for-each-ref", "refs/exps"], capture_output=True, text=True, check=True
    ).stdout
    files = [path for path in project.rglob("*") if path.is_file() and not path.is_symlink()]
    return {
        "flow runs": runs,
        "experiments": len(refs.splitlines()),
        "ledger lines": len((state / "ledger.jsonl").read_text().splitlines()),
        "objects": sum(".dvc/cache/files" in str(path) for path in files),
        "run cache": sum(".dvc/cache/runs" in str(path) for path in files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    began = time.monotonic()
    run_nights(Path(sys.argv[1]), int(sys.argv[2]))
    print(f"{sys.argv[2]} nights in {(time.monotonic() - began) / 60:.1f} min")
