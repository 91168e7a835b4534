"""Merge the layers of some models into a folder: weights, the files next to them, and the cost of the merge."""

import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from merganser.checkpoints.companions import copy_companions
from merganser.checkpoints.reading import Checkpoint, open_for_merging
from merganser.checkpoints.writing import AS_THE_BASE, OutputFormat
from merganser.inputs.layers import LayerSource
from merganser.linalg.counts import share_of, tallied
from merganser.merging.driver import choose_device, merge_layers
from merganser.merging.method import Method
from merganser.outputs import write_json
from merganser.overlays import FILE
from merganser.progress import Progress, unwatched

NOWHERE = Path()


def merge_entry(
    method: Method,
    values: dict[str, Any],
    source: LayerSource,
    base: Path,
    folder: Path,
    profile: Path | None,
    texts: Callable[[], Mapping[str, str]],
    device: str = "cpu",
    threads: int = 1,
    output: OutputFormat = AS_THE_BASE,
    read: Path = NOWHERE,
    noted: Mapping[str, Any] | None = None,
    progress: Progress = unwatched,
    modules: Sequence[str] = (),
) -> None:
    """Merge a source's layers onto the base into an empty folder, with its card and the files next to the base.

    `texts`: writes the text files next to the weights, such as the card, once these are written. `read`: the folder
    of the entry's input. `noted`: more for the profile: the losses by step of learned values, the search, or the
    cost of statistics. If the method keeps the largest entries, the profile has the share that it kept. `modules`:
    those in the base's folder that the source has too.
    """
    start_wall, start_cpu = time.perf_counter(), time.process_time()
    checkpoint, computing = open_for_merging(base, modules), choose_device(device)
    with tallied() as tally:
        merge_layers(method, values, source, checkpoint, folder, computing, threads, output, progress)
    copy_companions(base, folder, modules)
    output.declare(folder)
    if method.at_run_time:
        method.at_run_time.write(folder, values, source, read)
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8")
    if profile:
        times = {"wall_s": time.perf_counter() - start_wall, "cpu_s": time.process_time() - start_cpu}
        rate = {"amr": additional_memory_rate(method, folder, checkpoint, source)}
        share = share_of(tally)
        kept = {} if share is None else {"kept_share": share}
        named = "cpu" if computing.type == "cpu" else f"cuda ({torch.cuda.get_device_name(computing)})"
        write_json(profile, times | _usage() | rate | kept | {"device": named} | dict(noted or {}))


def additional_memory_rate(method: Method, merged: Path, base: Checkpoint, source: LayerSource) -> float:
    """Return the bytes of the tasks' own files per task over the bytes of the merged parameters in float32."""
    own = [merged / FILE] if method.overlay else []
    own += [merged / method.at_run_time.FILE] if method.at_run_time else []
    values = sum(prod(base.spec(name).shape) for name in source.names)
    return sum(path.stat().st_size for path in own) / len(source.tasks) / (4 * values)


def _usage() -> dict[str, Any]:
    """Read the process's peak memory and traffic (the latter where the system counts it)."""
    counters = Path("/proc/self/io")
    counts = (
        dict(line.split(": ") for line in counters.read_text(encoding="utf-8").splitlines())
        if counters.exists()
        else {}
    )
    return {
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "read_bytes": int(counts.get("rchar", 0)),
        "written_bytes": int(counts.get("wchar", 0)),
        "host": platform.node(),
    }
