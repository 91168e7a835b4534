"""Run drills: `python -m tests.drills [NAME ...] [--sample]`, all of them if none is named.

A drill tries a promise as often, or on as much, as a test of every day has no time for. `make test` runs a sample of
each. A drill prints what it tried; the exit code is 1 if one of them failed.
"""

import argparse
import importlib
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

TESTS = "tests"
DRILLS = {
    TESTS: "the tests that take too long for every day, which `make test` leaves out",
    "kills": "some 200 kills of runs and of stages, each followed by a clean finish with the same bytes",
    "power_cuts": "200 power cuts of runs on a real file system, each followed by a run with the same bytes",
    "damage": "each file of the state, of DVC and of the stores, damaged in eight ways: commands go on or name it",
    "resume": "what learns, searches, measures, routes and operates, killed in its middle to the same bytes",
    "fuzz": "10,000 broken or hostile inputs to each reader of foreign files",
    "repro": "all of `dvc repro`, whose hashes are the flow's",
    "differential": "500 random repositories by `dvc repro` and by the engine, to the same bytes, also after a change",
    "containers": "a foreign repository in containers, of another owner and without git: as `dvc repro` there",
    "nights": "400 nights of a schedule by a clock that moves, and `merganser gc`: disk and start stay flat",
    "slurm": "a SLURM of one machine: jobs killed, requeued, drained, under a controller and a run that are killed too",
    "nodes": "clusters of Ray and of Dask whose nodes are clones, one of them killed",
    "remotes": "nodes whose DVC remote is an S3 server's, or a folder by ssh, one of them killed",
    "networks": "a tiny network of every model type that a family builds, in batches, alone and by transformers",
    "architectures": "tiny models of every class that transformers has, merged by ten methods and loaded back",
    "comparisons": "two comparisons begun at once on one empty cache, ten times; one left and taken up again",
    "miniatures": "the suites of real models from nothing, on a hub of models of two layers under their own names",
    "mergekit": "configurations of mergekit, merged by it and brought over: the same models but for rounding",
    "strangers": "merges scored by transformers alone, lm-eval's command line and `transformers serve`: to the digit",
    "suites": "the text suites from nothing on two seeds, their scores in order, and one seed by `dvc repro`",
    "real": "the suite of a real model from nothing, cut down, whose scores are those of transformers alone",
    "install": "both packages built twice; the library alone beside torch: in two minutes and 1.5 GB it merges",
    "versions": "a foreign repository, with the oldest and the newest DVC and Prefect of the declared ranges",
}


def run(name: str, folder: Path, sample: bool) -> None:
    """Run a drill in a folder; raises AssertionError, or what else comes out of it, if it fails."""
    importlib.import_module(f"tests.drills.{name}").drill(folder, sample)


def main() -> int:
    """Run the drills of the command line; return the exit code."""
    listed = "\n".join(f"  {name:14}{what}" for name, what in DRILLS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills", epilog=listed, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which drills; all if none is named")
    parser.add_argument("--sample", action="store_true", help="try a little of each, as `make test` does")
    given = parser.parse_args()
    if unknown := set(given.names) - set(DRILLS):
        parser.error(f"no such drill: {', '.join(sorted(unknown))}; there are {', '.join(DRILLS)}")
    failed = []
    for name in given.names or [name for name in DRILLS if name != TESTS or not given.sample]:
        print(f"{name}: {DRILLS[name]}", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"drill-{name}-") as folder:
            try:
                run(name, Path(folder), given.sample)
            except pytest.skip.Exception as skipped:
                print(f"{name} skipped: {skipped}")
            except (Exception, SystemExit):  # the other drills run all the same
                traceback.print_exc()
                failed.append(name)
        ended = "failed" if name in failed else "passed"
        print(f"{name} {ended} in {(time.monotonic() - began) / 60:.1f} min\n", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all drills passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
