"""CPUs and memory that this process may use, by its affinity and its control groups.

Containers, SLURM and systemd set limits by control groups, of version 1 or 2. Without these, Python and psutil report
the whole machine.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath

import psutil  # type: ignore[import-untyped]

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# By version, the limit, the use, and what of that is cached files, which the system drops when memory is needed.
_MEMORY = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def usable_cpus() -> int:
    """Return how many CPUs this process may use: at least one."""
    quotas = [ceil(quota / period) for quota, period in _cpu_limits() if quota > 0 and period > 0]
    return min([len(os.sched_getaffinity(0)), *quotas])


def usable_memory() -> int:
    """Return the most memory in bytes that this process and others in its control groups may use."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _memory_limits())])


def available_memory() -> int:
    """Return how much memory in bytes this process can still allocate; cached files count as free."""
    free = [int(psutil.virtual_memory().available), *(limit - used for limit, used in _memory_limits())]
    return max(0, min(free))


def _cpu_limits() -> Iterator[tuple[int, int]]:
    """Yield the microseconds of CPU time that control groups give in each period, and the period."""
    for folder in _folders("cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        yield _number(quota), _number(period)
        yield _number(_text(folder / "cpu.cfs_quota_us")), _number(_text(folder / "cpu.cfs_period_us"))


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limits of control groups, and how much of each is in use without cached files."""
    for folder in _folders("memory"):
        for limit, usage, cached in _MEMORY:
            if (most := _number(_text(folder / limit))) > 0:
                parts = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
                files = sum(max(0, _number(parts.get(name, ""))) for name in cached)
                yield most, max(0, _number(_text(folder / usage)) - files)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, and of those around them."""
    for line in _text(_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path).relative_to("/")
            mount = _MOUNT / controller if controllers else _MOUNT
            yield from (mount / each for each in (group, *group.parents))


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return ""


def _number(text: str) -> int:
    """Parse a control group's limit; return -1 for no limit (`max` in version 2)."""
    return int(text) if text.isdecimal() else -1
