"""Measure `merganser run` against `dvc repro` on repositories of trivial stages: `python -m benchmarks.engine`.

Each stage reads a tiny file and writes another, so that what is measured is the engine alone:

    first    nothing ran yet
    again    nothing is to do

`dvc repro` is run once to the end at the smaller size only: it takes minutes, and its time grows with the square.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    MB,
    RESULTS,
    Measured,
    Run,
    alternate,
    as_table,
    as_text,
    field_of,
    ratio,
    spread,
    write_results,
)

RUN = "from merganser.flows.commands.cli import main; main()"
OURS, THEIRS = "merganser run", "dvc repro"
STAGES, MANY, WORKERS, TIMES = 650, 5000, 4, 3


class Repository:
    """A DVC repository of trivial stages that is made afresh before a run, and when that run and its stages began."""

    def __init__(self, folder: Path, stages: int) -> None:
        self.folder, self._template, self._began, self.waits = folder, folder.with_suffix(".new"), 0.0, list[float]()
        if not self._template.exists():
            make_repository(self._template, stages)

    def afresh(self) -> None:
        """Put a repository here in which nothing ran yet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._template, self.folder)
        os.sync()
        self._began = time.time()

    def note_start(self) -> None:
        """Note how long the last run took until the first stage had written its output."""
        self.waits.append(min(path.stat().st_mtime for path in (self.folder / "out").iterdir()) - self._began)

    def lock(self) -> bytes:
        """Return what dvc.lock holds."""
        return (self.folder / "dvc.lock").read_bytes()


def main() -> None:
    """Measure both at one size and ours at a larger one; print tables, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=STAGES, help=f"how many stages ({STAGES})")
    parser.add_argument("--many", type=int, default=MANY, help=f"how many in the larger repository ({MANY}; 0: none)")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"stages at once for merganser run ({WORKERS})")
    parser.add_argument("--times", type=int, default=TIMES, help=f"how often each, dvc's first run aside ({TIMES})")
    parser.add_argument("--only-ours", action="store_true", help="leave dvc repro out: it takes minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        root, workers, times = Path(folder), options.workers, options.times
        found = {"size": size(root / "few", options.stages, workers, times, not options.only_ours)}
        if options.many:
            found["larger"] = size(root / "many", options.many, workers, 1, with_dvc=False)
    print(report(found, workers))
    write_results(options.json or RESULTS / "engine.json", {"workers": workers, **found})


def size(root: Path, stages: int, workers: int, times: int, with_dvc: bool) -> dict[str, Any]:
    """Measure a size: each side's first run and the run after it, the waits for the first stage, the lock files."""
    ours, theirs = Repository(root / "ours", stages), Repository(root / "theirs", stages) if with_dvc else None
    command = [sys.executable, "-c", RUN, "run", "--workers", str(workers), "--repo", str(ours.folder)]
    variables = {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}
    first = {OURS: Run(command, environment=variables, before=ours.afresh)}
    again = {OURS: Run(command, environment=variables)}
    if theirs:
        repro = [sys.executable, "-m", "dvc", "repro", "-q"]
        first[THEIRS] = Run(repro, theirs.folder, variables, theirs.afresh)
        again[THEIRS] = Run(repro, theirs.folder, variables)
    found: dict[str, Any] = {
        "stages": stages,
        "first": alternate(
            first, {OURS: times, THEIRS: 1}, lambda side, _: ours.note_start() if side == OURS else None
        ),
        "again": alternate(again, dict.fromkeys(again, max(times, 3))),
        "wait_s": ours.waits,
    }
    if theirs:
        found["same_lock"] = ours.lock() == theirs.lock()
    return found


def report(found: dict[str, Any], workers: int) -> str:
    """Return the figures as Markdown."""
    few = found["size"]
    parts = [f"{few['stages']} trivial stages, {workers} workers, {os.cpu_count()} CPUs:", table(few)]
    if "same_lock" in few:
        first, again = (
            {side: field_of(few[kind][side], "wall_s") for side in few[kind]} for kind in ("first", "again")
        )
        faster, idle = ratio(first[THEIRS], first[OURS]), ratio(again[THEIRS], again[OURS])
        same = "the same" if few["same_lock"] else "NOT the same"
        parts.append(
            f"{as_text(faster)} times faster, {as_text(idle)} times if nothing is to do; {same} bytes of dvc.lock."
        )
    parts.append(f"The first stage has ended {as_text(spread(few['wait_s']))} s after the start.")
    if "larger" in found:
        many = found["larger"]
        costs = [each["first"][OURS] for each in (few, many)]
        per_stage = [
            [1000 * value / each["stages"] for value in field_of(runs, "wall_s")]
            for each, runs in zip((few, many), costs, strict=True)
        ]
        parts += [f"{many['stages']} stages:", table(many)]
        parts.append(
            f"With {many['stages']} stages one costs {as_text(spread(per_stage[1]))} ms, with {few['stages']} "
            f"{as_text(spread(per_stage[0]))} ms, start and end included: "
            f"{as_text(ratio(per_stage[1], per_stage[0]), 2)} times as much."
        )
    return "\n\n".join(parts)


def table(found: dict[str, Any]) -> str:
    """Return the runs of one size as a table."""
    heads = ("", "wall s", "CPU s", "peak resident MB", "peak anonymous MB")
    rows = [
        row(f"{side}, {kind}", runs)
        for kind in ("first", "again")
        for side, runs in sorted(found[kind].items())
        if runs
    ]
    return as_table(heads, rows)


def row(name: str, runs: Sequence[Measured]) -> list[str]:
    """Return one side's cells."""
    seconds = [as_text(spread(field_of(runs, each))) for each in ("wall_s", "cpu_s")]
    memory = ("peak_rss_bytes", "peak_anonymous_bytes")
    return [name, *seconds, *(as_text(spread([value / MB for value in field_of(runs, each)]), 0) for each in memory)]


def make_repository(root: Path, stages: int) -> None:
    """Make a DVC repository with stages that each read a tiny file and write another."""
    (root / "in").mkdir(parents=True)
    (root / "out").mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=root, check=True)
    entries = {}
    for number in range(stages):
        (root / f"in/{number}").write_text(f"{number}\n")
        entries[f"s{number}"] = {
            "cmd": f"echo {number} > out/{number}",
            "deps": [f"in/{number}"],
            "outs": [f"out/{number}"],
        }
    # JSON is YAML.
    (root / "dvc.yaml").write_text(json.dumps({"stages": entries}, indent=1))


if __name__ == "__main__":
    main()
