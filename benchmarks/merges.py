"""Merge eight ViT-B/32-sized checkpoints by every method: `python -m benchmarks.merges`.

Each merge is one `merganser merge`, a process of its own, from checkpoints on disk to a merged checkpoint on disk.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.models import TOWER, make_models
from merganser import registry

ROOT = Path(__file__).parent.parent
RUN = "from flows.cli import main; main()"
CLASSES = ("cat", "dog", "ship", "lorry")  # dts_unseen asks for the tasks' class names
MIB = 2**20


def main() -> None:
    """Merge by each method in turn; print a table of times and memory as Markdown, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="only these (all registered ones)")
    parser.add_argument("--tasks", type=int, default=8, help="fine-tuned models (8)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of a merge (the CPUs' number)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too, after each merge")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        base, models = make_models(options.folder or Path(temporary), options.tasks)
        print("| method | wall, s | CPU, s | peak memory, MiB | of it anonymous | AMR, % |\n|---|---|---|---|---|---|")
        rows = {}
        for name in options.methods or registry.names():
            rows[name] = measure(name, base, models, Path(temporary), options.threads)
            print(as_row(name, rows[name]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({"threads": options.threads, "methods": rows}, indent=2))


def measure(method: str, base: Path, models: dict[str, Path], folder: Path, threads: int) -> dict[str, Any]:
    """Return wall and CPU seconds, peak memory in bytes and the additional memory rate of one merge."""
    out, profile = folder / "merged", folder / "profile.json"
    command = [
        sys.executable,
        "-c",
        RUN,
        "merge",
        method,
        "--base",
        str(base),
        "--only",
        f"{TOWER}*",
        "--out",
        str(out),
    ]
    command += ["--profile", str(profile), "--device", "cpu"]
    for task, path in models.items():
        command += ["--model", f"{task}={path}"]
        if registry.get(method).embeddings:
            file = folder / f"{task}.txt"
            file.write_text("\n".join(f"{name} {task}" for name in CLASSES))
            command += ["--classes", f"{task}={file}"]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, stdout=subprocess.DEVNULL
    )
    anonymous = _watched(process)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    wall = time.perf_counter() - started
    rate = json.loads(profile.read_text())["amr"]
    shutil.rmtree(out)
    return {
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        "peak_anonymous_bytes": anonymous,
        "amr": rate,
    }


def _watched(process: "subprocess.Popen[bytes]") -> int:
    """Wait until a process has ended, without reaping it; return the most anonymous memory it was seen to hold."""
    most = 0
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        most = max(most, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
        time.sleep(0.02)
    return most


def as_row(name: str, found: dict[str, Any]) -> str:
    """Write one line of the table."""
    memory = f"{found['peak_rss_bytes'] / MIB:.0f} | {found['peak_anonymous_bytes'] / MIB:.0f}"
    return f"| `{name}` | {found['wall_s']:.1f} | {found['cpu_s']:.1f} | {memory} | {100 * found['amr']:.2f} |"


if __name__ == "__main__":
    main()
