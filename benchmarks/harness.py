"""Run commands, each in a process of its own, and measure them: wall and CPU time, peak memory of all their processes.

The sides of a comparison run in alternation, so that what else the machine does meets all of them. Needs Linux: what a
process holds is read from /proc.
"""

import json
import math
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "benchmarks"
MB = 1e6
INTERVAL = 0.02  # seconds between two looks at a process's memory
SHOWN = 2000  # characters of a failed command's complaint
VERSIONS = """
import json, platform, re, scipy, torch, threadpoolctl
blas = {f"{each['internal_api']} {each['version']}" for each in threadpoolctl.threadpool_info()
        if each["user_api"] == "blas"}
mkl = re.findall(r"Math Kernel Library Version ([0-9.]+)", torch.__config__.show())  # linked into torch, so not listed
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__, "scipy": scipy.__version__,
                  "blas": [*(f"MKL {version}" for version in mkl), *sorted(blas)]}))
"""


@dataclass(frozen=True)
class Run:
    """A command, and what to do before each time it is measured, such as removing what it wrote the last time."""

    command: Sequence[str]
    folder: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)  # beside what is set anyway
    before: Callable[[], None] | None = None
    until_s: float = math.inf  # it is ended then: what it held by that time is asked for, not its result


@dataclass(frozen=True)
class Measured:
    """What one run of a command took.

    The CPU time is the process's and that of the processes it waited for. Memory is the sum over the process and all
    its descendants, looked at fifty times a second: a shorter peak may be missed, but not the resident peak of
    one process, which the system keeps.
    """

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    peak_anonymous_bytes: int


class Spread(NamedTuple):
    """The median of some measurements, the least and the most of them, and how many there were."""

    median: float
    least: float
    most: float
    times: int


def measure(run: Run) -> Measured:
    """Run a command and measure it; raise RuntimeError with what it said when it fails."""
    if run.before:
        run.before()
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(
            run.command,
            cwd=run.folder,
            env=os.environ | run.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            resident, anonymous = _watch(process.pid, run.until_s)
            wall = time.perf_counter() - started
            if is_cut := wall >= run.until_s:
                process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        if process.returncode != 0 and not is_cut:
            raise RuntimeError(f"{' '.join(run.command)} ended with {process.returncode}: {_end_of(said)}")
    return Measured(wall, usage.ru_utime + usage.ru_stime, resident, anonymous)


def alternate(
    sides: Mapping[str, Run], times: Mapping[str, int], done: Callable[[str, Measured], None] | None = None
) -> dict[str, list[Measured]]:
    """Measure each side as often as `times` says, taking turns; `done` hears of each measurement."""
    found: dict[str, list[Measured]] = {side: [] for side in sides}
    for turn in range(max(times.values())):
        for side, run in sides.items():
            if turn < times[side]:
                found[side].append(measure(run))
                if done:
                    done(side, found[side][-1])
    return found


def spread(values: Sequence[float]) -> Spread:
    """Summarise measurements of one thing."""
    return Spread(median(values), min(values), max(values), len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divide the medians of two sides; the least and the most that any two of their measurements give."""
    times = min(len(above), len(below))
    return Spread(median(above) / median(below), min(above) / max(below), max(above) / min(below), times)


def field_of(runs: Sequence[Measured], name: str) -> list[float]:
    """List one quantity of several runs."""
    return [getattr(run, name) for run in runs]


def as_text(values: Spread, digits: int = 1) -> str:
    """Write the median and, where there is more than one measurement, from where to where they went."""
    if values.times == 1:
        return f"{values.median:.{digits}f}"
    return f"{values.median:.{digits}f} ({values.least:.{digits}f}–{values.most:.{digits}f})"


def as_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table as Markdown, its columns aligned; the first holds words, the others figures."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(heads), f"|{rule}|", *map(line, rows)])


@cache
def machine() -> dict[str, Any]:
    """Describe the machine and the versions: all that a figure depends on, and no name or path."""
    versions = subprocess.run([sys.executable, "-c", VERSIONS], check=True, capture_output=True, text=True).stdout
    return {
        "cpu": _line_of("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_line_of("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "os": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release().split('-')[0]}",
        **json.loads(versions),
        "commit": _commit(),
    }


def described(found: Mapping[str, Any]) -> str:
    """Write the machine's description as one sentence."""
    hardware = f"{found['cores']} cores of {found['cpu']}, {found['memory_gib']} GiB"
    versions = f"Python {found['python']}, torch {found['torch']}, scipy {found['scipy']}"
    return f"{hardware}; {found['os']}; {versions}, BLAS {' and '.join(found['blas'])}; commit {found['commit']}"


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write figures as JSON, the machine's description beside them; the measurements become plain numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), **content}, indent=2, default=asdict)
    path.write_text(text + "\n")


def _watch(pid: int, until_s: float) -> tuple[int, int]:
    """Wait until a process has ended, without reaping it, or so long; return the most its tree held by then."""
    resident = anonymous = 0
    ends = select.poll()
    handle = os.pidfd_open(pid)
    end = time.perf_counter() + until_s
    try:
        ends.register(handle, select.POLLIN)
        while not ends.poll(INTERVAL * 1000) and time.perf_counter() < end:
            held = [_held(each) for each in _tree(pid)]
            resident = max(resident, sum(each[0] for each in held), *(each[1] for each in held))
            anonymous = max(anonymous, sum(each[2] for each in held))
    finally:
        os.close(handle)
    return resident, anonymous


def _tree(pid: int) -> Iterator[int]:
    """Give a process and its descendants."""
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:  # it has just ended
        return
    for child in children:
        yield from _tree(child)


def _held(pid: int) -> tuple[int, int, int]:
    """Return a process's resident bytes, their peak so far, and its anonymous bytes; zeros if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0, 0
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    resident, most, anonymous = (int(sizes.get(name, "0").split()[0]) for name in ("VmRSS", "VmHWM", "RssAnon"))
    return 1024 * resident, 1024 * most, 1024 * anonymous


def _end_of(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace")[-SHOWN:]


def _line_of(path: str, name: str) -> str:
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
