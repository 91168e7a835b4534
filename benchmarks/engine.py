"""Measure `merganser run` against `dvc repro` on a repository of trivial stages: `python -m benchmarks.engine`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RUN = "from flows.cli import main; main()"


def main() -> None:
    """Run both, back to back, and a second time; print wall times, their ratio and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=650, help="how many stages (650)")
    parser.add_argument("--workers", type=int, default=4, help="stages at once for merganser run (4)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only-ours", action="store_true", help="leave dvc repro out: it takes minutes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        result = measure(Path(folder), options.stages, options.workers, not options.only_ours)
    print(json.dumps(result) if options.json else as_text(result))


def measure(folder: Path, stages: int, workers: int, with_dvc: bool) -> dict[str, Any]:
    """Return seconds and peak memory of each command, in the order they ran, and the ratios."""
    ours, theirs = folder / "ours", folder / "theirs"
    run = [sys.executable, "-c", RUN, "run", "--workers", str(workers), "--repo", str(ours)]
    repro = [sys.executable, "-m", "dvc", "repro", "-q"]
    result: dict[str, Any] = {"stages": stages, "workers": workers, "cpus": os.cpu_count(), "runs": {}}
    make_repository(ours, stages)
    if with_dvc:
        make_repository(theirs, stages)
        result["runs"]["dvc repro"] = timed(repro, theirs)
    result["runs"]["merganser run"] = timed(run, ROOT)
    result["runs"]["merganser run, again"] = timed(run, ROOT)
    if with_dvc:
        result["runs"]["dvc repro, again"] = timed(repro, theirs)
        result["same dvc.lock"] = (ours / "dvc.lock").read_bytes() == (theirs / "dvc.lock").read_bytes()
        result["times faster"] = result["runs"]["dvc repro"]["seconds"] / result["runs"]["merganser run"]["seconds"]
    return result


def make_repository(root: Path, stages: int) -> None:
    """Make a DVC repository with stages that each read a tiny file and write another."""
    from dvc.repo import Repo

    (root / "in").mkdir(parents=True)
    (root / "out").mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    Repo.init(str(root)).close()
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


def timed(command: list[str], folder: Path) -> dict[str, float]:
    """Run a command; return its wall seconds and the peak memory of the largest of its processes."""
    environment = os.environ | {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {"seconds": time.perf_counter() - started, "peak_mib": usage.ru_maxrss * unit / 2**20}


def as_text(result: dict[str, Any]) -> str:
    """Return the result as lines for a reader."""
    lines = [f"{result['stages']} trivial stages, {result['workers']} workers, {result['cpus']} CPUs"]
    for name, run in result["runs"].items():
        lines.append(f"  {name:22} {run['seconds']:8.1f} s {run['peak_mib']:8.0f} MiB")
    if "times faster" in result:
        lines.append(f"  {result['times faster']:.1f} times faster; the same dvc.lock: {result['same dvc.lock']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
