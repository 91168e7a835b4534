"""Run all benchmarks in 30 to 45 minutes: `make bench`, or `python -m benchmarks [PART ...]`.

Each part is a module of this package that can be run alone, and more fully. What it prints and its figures also go to
build/benchmarks/.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT


@dataclass(frozen=True)
class Part:
    """A module of this package with its arguments, and the page of docs/ that shows what it prints."""

    words: tuple[str, ...]
    models: bool = False  # takes the folder of models that such parts share
    page: str = "benchmarks.md"
    asked: bool = False  # runs only when asked for

    @property
    def command(self) -> str:
        """Return it as one types it."""
        return f"python -m benchmarks.{' '.join(self.words)}"


PARTS = {
    "engine": Part(("engine",), page="benchmarks-pipeline.md"),
    "merges": Part(("merges", "--short"), models=True),
    "mergekit": Part(("mergekit", "--blocks=2", "--times=1", "task_arithmetic", "ties"), models=True),
    "decompose_once": Part(("decompose_once",), page="costs-measured.md"),
    "costs": Part(("costs", "--short"), page="costs-measured.md"),
    "all_costs": Part(("costs",), page="costs-measured.md", asked=True),
}
DEFAULT = [name for name, part in PARTS.items() if not part.asked]
ASKED = [name for name, part in PARTS.items() if part.asked]


def main() -> None:
    """Run the parts one after another, even if one fails; exit 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(DEFAULT)}; not unless named: {', '.join(ASKED)}"
    )
    parser.add_argument("--page", action="store_true", help="put what the parts print into their pages of docs/")
    options = parser.parse_args()
    parts = options.parts or DEFAULT
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {min(unknown)}: there are {', '.join(PARTS)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        done = {name: run(name, PARTS[name], folder) for name in parts}
    if options.page:
        for name in (name for name in parts if done[name]):
            put(name, (RESULTS / f"{name}.md").read_text(), ROOT / "docs" / PARTS[name].page)
    sys.exit(0 if all(done.values()) else 1)


def run(name: str, part: Part, folder: str) -> bool:
    """Run one part under a heading, save its output, print how long it took; return whether it succeeded."""
    print(f"\n## {name}\n\n`{part.command}`\n", flush=True)
    started = time.perf_counter()
    module, *words = part.words
    command = [sys.executable, "-m", f"benchmarks.{module}", *words, *([f"--folder={folder}"] if part.models else [])]
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    (RESULTS / f"{name}.md").write_text("".join(lines))
    failed = f", and failed with {process.returncode}" if process.returncode else ""
    print(f"\n{name} took {(time.perf_counter() - started) / 60:.1f} minutes{failed}", flush=True)
    return not process.returncode


def put(part: str, text: str, page: Path) -> None:
    """Put a text between the part's two marks in a page, its lines wrapped; raise ValueError when it has none."""
    marks = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
    found = re.search(f"{marks[0]}.*?{marks[1]}", (before := page.read_text()), re.DOTALL)
    if found is None:
        raise ValueError(f"{page}: no place for {part}: it has not both {marks}")
    wrapped = "\n".join(
        line if line.startswith("|") else textwrap.fill(line, 119) for line in text.strip().splitlines()
    )
    page.write_text(f"{before[: found.start()]}{marks[0]}\n{wrapped}\n\n{marks[1]}{before[found.end() :]}")


if __name__ == "__main__":
    main()
