"""Run all benchmarks, within half an hour on two cores: `make bench`, or `python -m benchmarks [PART ...]`.

Each part is a module of this package that can be run alone, and more fully. What it prints and its figures also go to
build/benchmarks/.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT

PARTS: dict[str, list[str]] = {
    "engine": [],
    "merges": ["--short"],
    "mergekit": ["--times=1", "task_arithmetic", "ties", "breadcrumbs"],
    "decompose_once": [],
    "costs": [],
}
MODELS = ("merges", "mergekit")  # they share theirs
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> None:
    """Run the parts one after another, each to its end whatever becomes of the others; exit 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"({', '.join(PARTS)})")
    parser.add_argument("--page", action="store_true", help=f"put what the parts print into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {min(unknown)}: there are {', '.join(PARTS)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        done = [run(part, [f"--folder={folder}"] if part in MODELS else []) for part in parts]
    if options.page:
        for part in (part for part, well in zip(parts, done, strict=True) if well):
            put(part, (RESULTS / f"{part}.md").read_text(), PAGE)
    sys.exit(0 if all(done) else 1)


def run(part: str, more: list[str]) -> bool:
    """Run one part under a heading, keep what it prints, say how long it took; tell whether it ended well."""
    print(f"\n## {part}\n\n`python -m benchmarks.{' '.join([part, *PARTS[part]])}`\n", flush=True)
    started = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.{part}", *PARTS[part], *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    (RESULTS / f"{part}.md").write_text("".join(lines))
    failed = f", and failed with {process.returncode}" if process.returncode else ""
    print(f"\n{part} took {(time.perf_counter() - started) / 60:.1f} minutes{failed}", flush=True)
    return not process.returncode


def put(part: str, text: str, page: Path) -> None:
    """Put a text between the part's two marks in a page; raise ValueError when it has none."""
    marks = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
    found = re.search(f"{marks[0]}.*?{marks[1]}", (before := page.read_text()), re.DOTALL)
    if found is None:
        raise ValueError(f"{page}: no place for {part}: it has not both {marks}")
    page.write_text(f"{before[: found.start()]}{marks[0]}\n{text.strip()}\n\n{marks[1]}{before[found.end() :]}")


if __name__ == "__main__":
    main()
