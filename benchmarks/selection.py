"""Measure TIES merges by this code against those by an older commit's: `python -m benchmarks.selection [COMMIT]`.

By default the commit is the last one that found thresholds by a sample and compiled loops, in 700 lines: now two
histograms of the magnitudes' bit patterns do. Both write the same bytes; the sides take turns. What else has changed
since that commit is measured too.
"""

import argparse
import filecmp
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import MB, ROOT, Run, alternate, as_table, as_text, described, field_of, machine, ratio, spread
from benchmarks.merges import TIMES
from benchmarks.models import BLOCKS
from benchmarks.sides import cold, made
from merganser.checkpoints.writing import MODEL

SAMPLED = "ed0fc67"
METHOD = "ties"


def main() -> None:
    """Merge by both, and print times, memory and their ratios as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=SAMPLED, help=f"({SAMPLED})")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"of the image tower ({BLOCKS}: ViT-B/32)")
    parser.add_argument("--times", type=int, default=TIMES, help=f"each side ({TIMES})")
    parser.add_argument("--threads", type=int, default=2, help="of a merge (2)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    options = parser.parse_args()
    print(described(machine()), flush=True)
    with made(options.folder, options.blocks, options.threads) as setting, checked_out(options.commit) as code:
        kept = {side: setting.folder / side for side in ("this code", options.commit)}
        for folder in kept.values():
            folder.mkdir()
        here, there = (cold(METHOD, replace(setting, folder=folder)) for folder in kept.values())
        sides = {"this code": by_code_in(ROOT, here), options.commit: by_code_in(code, there)}
        runs = alternate(sides, dict.fromkeys(sides, options.times))
        first, second = (folder / "cold" / MODEL for folder in kept.values())
        same = filecmp.cmp(first, second, shallow=False)
    rows = []
    for name, unit in (("wall_s", 1), ("cpu_s", 1), ("peak_anonymous_bytes", MB)):
        ours, theirs = ([value / unit for value in field_of(found, name)] for found in runs.values())
        label = name if unit == 1 else "peak_anonymous_mb"
        rows.append([label, as_text(spread(ours)), as_text(spread(theirs)), as_text(ratio(ours, theirs), 2)])
    print(
        f"\n{as_table([f'`{METHOD}`', *runs, 'ratio'], rows)}\n\nThe merged models are {'' if same else 'not '}equal."
    )
    sys.exit(not same)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, with its loops compiled if it has any."""
    with TemporaryDirectory(prefix="merganser-code-") as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
        try:
            for loops in Path(folder).glob("merganser/*/loops.py"):
                module = ".".join(loops.relative_to(folder).with_suffix("").parts)
                subprocess.run([sys.executable, "-c", f"import {module}"], cwd=folder, check=True)
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def by_code_in(folder: Path, run: Run) -> Run:
    """Let a command run the code in a folder."""
    return replace(
        run,
        folder=folder,
        environment={**run.environment, "PYTHONPATH": f"{folder}{os.pathsep}{folder}/packages/dvcfleet"},
    )


if __name__ == "__main__":
    main()
