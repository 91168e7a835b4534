"""Merges of language models on a GPU, against what its links and its cores could do: `benchmarks.devices --large`.

Random models in bfloat16, of TinyLlama's and Llama 3 8B's shapes, are made on the spot: the base, and all but a share
of the tasks' parameters, are holes of sparse files, which are read as zeros and take no disk. Each merge is
`merganser.merge` from disk to disk, in this process. The GPU comes first, twice, then the CPU; no merge begins after
`--minutes`. Files are read from the system's cache, but for the first pass over what is not a hole.
"""

import json
import os
import shutil
import struct
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch

import merganser
from benchmarks.harness import MB, as_table, described, machine, write_results
from benchmarks.llama import specs
from benchmarks.models import STEP
from merganser.checkpoints.kinds import is_linear
from merganser.checkpoints.tensors import Spec, to_bytes

TASKS = 4
GB = 1e9
BLOCK = "model.layers.0.*"
PROBE = 1 << 30  # bytes that are copied, or read, to see how fast that is
FLOAT64 = {"H200": 67e12, "H100": 67e12, "A100": 19.5e12}  # NVIDIA's figures of their tensor cores, by part of a name


@dataclass(frozen=True)
class Size:
    """A model's parameters; the tasks' files have values in one of so many, and in all of the first block."""

    name: str
    specs: Mapping[str, Spec]
    one_of: int


@dataclass(frozen=True)
class Merge:
    """A method, how often it reads the models, and the parameters that are merged."""

    method: str
    passes: int
    only: str = "*"


@dataclass(frozen=True)
class Took:
    """Time, memory and work of a merge; the memory is the peak of this process, and of torch on the GPU."""

    size: str
    merge: Merge
    device: str
    seconds: float
    host_bytes: int
    gpu_bytes: int
    read_bytes: int  # of the base's and all models' files, in all passes
    flop: float  # of decompositions


@dataclass(frozen=True)
class Limits:
    """Rates of this machine, per second: measured, or from a data sheet if the GPU is known."""

    disk: float  # bytes read past the system's cache
    link: float | None  # bytes copied from page-locked memory to the GPU
    flop: float | None  # in float64


SIZES = (Size("TinyLlama", specs(22, 2048, 5632, 256), 1), Size("Llama 3 8B", specs(32, 4096, 14336, 1024, 128_256), 4))
TINY = (Size("tiny", specs(2, 64, 160, 16, 512), 2),)
MERGES = (Merge("task_arithmetic", 1), Merge("ties", 4), Merge("tsv_m", 1, BLOCK))


def main(options: Namespace) -> None:
    """Make the models, merge them on each device, print a table, and write the figures as JSON."""
    ends = time.perf_counter() + 60 * options.minutes
    devices = ["cuda", "cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"{described(machine())}; {options.threads} threads; {name}\n", flush=True)
    found = list[Took]()
    with tempfile.TemporaryDirectory(prefix=".large-", dir=options.folder) as temporary:
        limits = limits_of(Path(temporary))
        for size in TINY if options.tiny else SIZES:
            folder = Path(temporary, "models")
            make_models(folder, size)
            for device in devices:
                for merge in MERGES:
                    if time.perf_counter() < ends:
                        found.append(measured(size, merge, device, folder, options.threads))
                        print(table(found[-1:], limits).splitlines()[-1], flush=True)
            shutil.rmtree(folder)
    print(f"\n{table(found, limits)}")
    write_results(options.json, {"limits": asdict(limits), "took": [asdict(each) for each in found]})


def make_models(folder: Path, size: Size) -> None:
    """Write a base of zeros and the tasks' models."""
    write_sparse(folder / "base" / "model.safetensors", size.specs, {})
    for task in range(TASKS):
        drawn = torch.Generator().manual_seed(task)
        filled = [
            name for place, name in enumerate(size.specs) if name.startswith(BLOCK[:-1]) or not place % size.one_of
        ]
        largest = max(prod(size.specs[name].shape) for name in filled if name.startswith(BLOCK[:-1]))
        values = to_bytes(STEP * torch.randn(largest, generator=drawn).bfloat16())
        write_sparse(folder / f"task{task}" / "model.safetensors", size.specs, dict.fromkeys(filled, values))


def write_sparse(path: Path, shapes: Mapping[str, Spec], filled: Mapping[str, memoryview]) -> None:
    """Write a safetensors file that has these bytes, over and over, in some of its tensors and is a hole elsewhere."""
    offset, header = 0, dict[str, Any]()
    for name in sorted(shapes):
        end = offset + shapes[name].nbytes
        header[name] = {"dtype": shapes[name].dtype, "shape": shapes[name].shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, values in filled.items():
            place, end = header[name]["data_offsets"]
            while place < end:
                file.seek(8 + len(text) + place)
                place += file.write(values[: end - place])
        file.truncate(8 + len(text) + offset)
        file.flush()
        os.fsync(file.fileno())


def measured(size: Size, merge: Merge, device: str, folder: Path, threads: int) -> Took:
    """Merge once, and remove the result."""
    models = {f"task{task}": folder / f"task{task}" for task in range(TASKS)}
    out = folder / "out"

    def do() -> None:
        merganser.merge(
            merge.method, folder / "base", models, out=out, only=[merge.only], device=device, threads=threads
        )

    seconds, host, gpu = peaks_of(do)
    shutil.rmtree(out)
    merged = {n: spec for n, spec in size.specs.items() if merge.only == "*" or n.startswith(merge.only[:-1])}
    read = merge.passes * (TASKS + 1) * sum(spec.nbytes for spec in merged.values())
    matrices = [spec.shape for name, spec in merged.items() if is_linear(name, spec.shape)]
    flop = sum(TASKS * decomposition_flop(*shape) for shape in matrices) if merge.method == "tsv_m" else 0.0
    return Took(size.name, merge, device, seconds, host, gpu, read, flop)


def decomposition_flop(rows: int, columns: int) -> float:
    """Count the operations of a matrix's SVD from its Gram matrix: that, its eigenvectors, and 1 / TASKS of U.

    >>> decomposition_flop(8, 4)
    896.0
    """
    long, short = max(rows, columns), min(rows, columns)
    return 2.0 * long * short**2 + 9.0 * short**3 + 2.0 * long * short * ceil(short / TASKS)


def peaks_of(do: Callable[[], object]) -> tuple[float, int, int]:
    """Return the seconds that something takes, and the most bytes that the process and torch on its GPU hold then."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak, from here on
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    do()
    seconds = time.perf_counter() - begun
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    held = next(1024 * int(line[1]) for line in lines if line[0] == "VmHWM:")
    return seconds, held, torch.cuda.max_memory_allocated() if on_gpu else 0


def limits_of(folder: Path) -> Limits:
    """Measure how fast the disk is read and the GPU copied to; look its cores up."""
    path = folder / "probe"
    path.write_bytes(os.urandom(1 << 20) * (PROBE >> 20))
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        with suppress(OSError):  # a file system may keep its pages
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        disk = PROBE / _seconds(lambda: _read_all(file.fileno()))
    path.unlink()
    if not torch.cuda.is_available():
        return Limits(disk, None, None)
    here, there = (
        torch.empty(PROBE, dtype=torch.uint8, pin_memory=True),
        torch.empty(PROBE, dtype=torch.uint8, device="cuda"),
    )

    def copy() -> None:
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()

    link = PROBE / min(_seconds(copy) for _ in range(3))
    known = (flop for part, flop in FLOAT64.items() if part in torch.cuda.get_device_name())
    return Limits(disk, link, next(known, None))


def _read_all(file: int) -> None:
    buffer = bytearray(1 << 24)
    while os.readv(file, [buffer]):
        pass


def _seconds(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def table(found: Sequence[Took], limits: Limits) -> str:
    """Write a row for each merge: GB/s of what is read and copied, TFLOP/s, and their shares of what is possible."""
    heads = (
        "models",
        "merge",
        "device",
        "s",
        "host, MB",
        "GPU, MB",
        "GB/s",
        "of disk",
        "of link",
        "TFLOP/s",
        "of peak",
    )
    rows = []
    for took in found:
        rate, flop = took.read_bytes / took.seconds, took.flop / took.seconds
        on_gpu = took.device == "cuda"
        shares = (share(rate, limits.disk), share(rate, limits.link if on_gpu else None))
        merge = f"`{took.merge.method}`" + ("" if took.merge.only == "*" else ", a block")
        held = [f"{each / MB:.0f}" for each in (took.host_bytes, took.gpu_bytes)]
        computed = (f"{flop / 1e12:.2f}" if flop else "–", share(flop, limits.flop if on_gpu else None))
        figures = (f"{took.seconds:.1f}", *held, f"{rate / GB:.2f}", *shares, *computed)
        rows.append((took.size, merge, took.device, *figures))
    return as_table(heads, rows)


def share(rate: float, limit: float | None) -> str:
    """Write a rate's share of a limit, a dash if either is unknown.

    >>> share(1.0, 4.0), share(1.0, None)
    ('25 %', '–')
    """
    return f"{100 * rate / limit:.0f} %" if rate and limit else "–"
