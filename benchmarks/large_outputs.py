"""Measure `merganser run` and `dvc repro` on large outputs beside trivial ones: `python -m benchmarks.large_outputs`.

The stages with large outputs come first in dvc.yaml and take no time of their own: what is measured is hashing and
copying into DVC's cache, and whether the trivial stages wait for it. Takes twice the outputs' size on disk.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.engine import OURS, RUN, THEIRS, WORKERS, make_repository
from benchmarks.harness import RESULTS, Run, as_table, measure, write_results

LARGE, GIGABYTES, TRIVIAL = 8, 2.0, 100


def main() -> None:
    """Measure both sides once; print a table and the ratios, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=LARGE, help=f"stages with a large output ({LARGE})")
    parser.add_argument("--gigabytes", type=float, default=GIGABYTES, help=f"size of a large output ({GIGABYTES})")
    parser.add_argument("--trivial", type=int, default=TRIVIAL, help=f"trivial stages ({TRIVIAL})")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"stages at once for merganser run ({WORKERS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    found = {}
    for side, command in sides(options.workers).items():
        with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
            found[side] = measure_side(Path(folder), command, options)
    print(report(found, options))
    write_results(options.json or RESULTS / "large_outputs.json", found)


def sides(workers: int) -> dict[str, list[str]]:
    """Return the command of each side."""
    return {
        OURS: [sys.executable, "-c", RUN, "run", "--workers", str(workers)],
        THEIRS: [sys.executable, "-m", "dvc", "repro", "-q"],
    }


def measure_side(folder: Path, command: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Run one side from nothing; return its time, and after which the last trivial output was written."""
    make_repository(folder, options.trivial)
    add_large(folder, options.large, options.gigabytes)
    os.sync()
    began = time.time()
    measured = measure(Run(command, folder, {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}))
    written = max((folder / f"out/{number}").stat().st_mtime for number in range(options.trivial))
    return {"wall_s": measured.wall_s, "cpu_s": measured.cpu_s, "trivial_s": written - began}


def add_large(root: Path, count: int, gigabytes: float) -> None:
    """Put stages with large outputs, each of its own content, before the others of dvc.yaml."""
    path = root / "dvc.yaml"
    large = {
        f"large{number}": {
            "cmd": f"echo {number} > large{number} && truncate -s {round(gigabytes * 1e9)} large{number}",
            "deps": ["in/0"],
            "outs": [f"large{number}"],
        }
        for number in range(count)
    }
    path.write_text(json.dumps({"stages": large | json.loads(path.read_text())["stages"]}, indent=1))


def report(found: dict[str, dict[str, float]], options: argparse.Namespace) -> str:
    """Return the figures as Markdown."""
    heads = ("", "wall s", "CPU s", "all trivial stages had run after s")
    rows = [[side, *(f"{figures[name]:.1f}" for name in figures)] for side, figures in found.items()]
    ratios = [found[THEIRS][name] / found[OURS][name] for name in ("wall_s", "trivial_s")]
    return (
        f"{options.large} stages of {options.gigabytes:g} GB beside {options.trivial} trivial ones, "
        f"{options.workers} workers, {os.cpu_count()} CPUs:\n\n{as_table(heads, rows)}\n\n"
        f"{ratios[0]:.1f} times faster; the trivial stages had run {ratios[1]:.1f} times sooner."
    )


if __name__ == "__main__":
    main()
