"""Measure what it costs that a run's results are on the disk before they are named: `python -m benchmarks.syncs`.

The same run of trivial stages with its syncs and without, in alternation: the ratio of their times. A run of real
stages is measured by itself, `python -m benchmarks.syncs --here run --workers 2` in its repository: it says how many
syncs there were, how long they took, and which part of the run's time that is; the stages' processes work meanwhile.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dvcfleet.disk
from benchmarks.engine import RUN, STAGES, WORKERS, Repository
from benchmarks.harness import RESULTS, Run, alternate, as_table, as_text, field_of, ratio, spread, write_results

WITH, WITHOUT = "with syncs", "without"
# Of syncs alone: what is written stays the same.
UNSYNCED = "import os, dvcfleet.disk as disk; disk.sync_file_systems = os.fsync = lambda _: None; "


def main() -> None:
    """Measure trivial stages, or the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=STAGES, help=f"how many trivial stages ({STAGES})")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"stages at once ({WORKERS})")
    parser.add_argument("--times", type=int, default=5, help="how often with syncs, and how often without (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--here", nargs=argparse.REMAINDER, metavar="ARG", help="measure `merganser ARG ...` here")
    options = parser.parse_args()
    if options.here:
        here(options.here)
        return
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        found = trivial(Path(folder) / "repository", options.stages, options.workers, options.times)
    print(report(found))
    write_results(options.json or RESULTS / "syncs.json", found)


def trivial(root: Path, stages: int, workers: int, times: int) -> dict[str, Any]:
    """Measure the first run of a repository of trivial stages, with and without syncs."""
    repository = Repository(root, stages)
    words = ["run", "--workers", str(workers), "--repo", str(root)]
    variables = {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}
    sides = {
        name: Run([sys.executable, "-c", code, *words], environment=variables, before=repository.afresh)
        for name, code in ((WITH, RUN), (WITHOUT, UNSYNCED + RUN))
    }
    return {"stages": stages, "workers": workers, "runs": alternate(sides, dict.fromkeys(sides, times))}


def report(found: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    walls = {side: field_of(runs, "wall_s") for side, runs in found["runs"].items()}
    table = as_table(("", "wall s"), [[side, as_text(spread(values), 2)] for side, values in walls.items()])
    cost = as_text(ratio(walls[WITH], walls[WITHOUT]), 2)
    return f"{found['stages']} trivial stages, {found['workers']} workers:\n\n{table}\n\n{cost} times the time without."


def here(words: list[str]) -> None:
    """Run `merganser` in this process and print what its syncs took."""
    spent: list[float] = []
    sync_file_systems, fsync = dvcfleet.disk.sync_file_systems, os.fsync

    def timed(call: Any) -> Any:
        def run(what: Any) -> None:
            began = time.monotonic()
            call(what)
            spent.append(time.monotonic() - began)

        return run

    dvcfleet.disk.sync_file_systems, os.fsync = timed(sync_file_systems), timed(fsync)
    # After the calls were replaced: modules import them by name.
    from merganser.flows.commands.cli import main as merganser

    sys.argv = ["merganser", *words]
    began = time.monotonic()
    try:
        merganser()
    finally:
        took = time.monotonic() - began
        figures = {"syncs": len(spent), "sync_s": sum(spent), "longest_s": max(spent, default=0), "run_s": took}
        print(f"{len(spent)} syncs took {sum(spent):.2f} of {took:.1f} s: {100 * sum(spent) / took:.1f} %")
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
