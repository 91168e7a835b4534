"""Measure the report of many entries: `python -m benchmarks.entries COMPARISON [--entries 1000]`.

COMPARISON is the folder of a comparison that ran. Its entries are repeated under new names, with links to their
results, in a temporary folder, and the stage `report` runs there. It prints the seconds, CPU seconds and memory of the
stage, the size of the page and of the tables, and the elements of the page's HTML.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

import yaml

from benchmarks.harness import MB, ROOT, described, machine

RESULTS = ("metrics", "examples", "measures/merged", "profiles/merge", "records", "measures/unseen")
KEPT = ("data", "suites", "published", "dvc.yaml", "dvc.lock", "points.yaml", ".dvcfleet")
RUN = """
import resource, time
began = time.perf_counter()
from merganser.tasks import report
from merganser.tasks.stage import run_main
try:
    run_main(report.main)
finally:
    wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    print(f"{wall:.1f} s, {used.ru_utime + used.ru_stime:.1f} CPU s, {used.ru_maxrss / 1000:.0f} MB")
"""


def main() -> None:
    """Make the comparison, write its report, and say what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--entries", type=int, default=1000, help="(1000)")
    parser.add_argument("--out", type=Path, help="keep the report here")
    options = parser.parse_args()
    print(described(machine()), flush=True)
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        folder = Path(temporary)
        repeat(options.comparison, folder, options.entries)
        for stage, command in {"code": ["-m", "merganser.tasks.code"], "report": ["-c", RUN]}.items():
            own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'packages/dvcfleet'}", "DVC_STAGE": stage}
            subprocess.run([sys.executable, *command], cwd=folder, env=os.environ | own, check=True)
        report = folder / "report"
        page = (report / "index.html").read_text()
        print(f"index.html: {len(page.encode()) / MB:.1f} MB, {len(re.findall(r'<[a-z]', page))} elements")
        files = sorted((file for file in report.rglob("*") if file.is_file()), key=lambda file: -file.stat().st_size)
        for file in files[:8]:
            print(f"{file.relative_to(report)}: {file.stat().st_size / MB:.2f} MB")
        print(f"the report's files: {sum(file.stat().st_size for file in files) / MB:.1f} MB")
        if options.out:
            shutil.copytree(report, options.out)


def repeat(comparison: Path, folder: Path, entries: int) -> None:
    """Link a comparison's results into a folder, its entries repeated until there are so many."""
    for name in KEPT:
        source = comparison / name
        if source.is_dir():
            shutil.copytree(source, folder / name, copy_function=os.link, symlinks=True)
        elif source.is_file():
            shutil.copyfile(source, folder / name)
    params = yaml.safe_load((comparison / "params.yaml").read_text())
    originals = dict(params["methods"])
    copies = ((name, f"{name}_{number}") for number in count(2) for name in originals)
    for name, copy in copies:
        if len(params["methods"]) >= entries:
            break
        params["methods"][copy] = originals[name]
        for results in RESULTS:
            for source in [folder / "data" / results / name, folder / "data" / results / f"{name}.json"]:
                target = source.with_name(source.name.replace(name, copy, 1))
                if source.is_dir():
                    shutil.copytree(source, target, copy_function=os.link)
                elif source.is_file():
                    os.link(source, target)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


if __name__ == "__main__":
    main()
