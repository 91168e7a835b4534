"""Measure the rates of one core that `benchmarks.cost_model` uses."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor

from benchmarks.cost_model import Rates, basis_s, drm_h_s
from benchmarks.harness import Run, measure
from benchmarks.projects import HEAD, IMAGES, TOKENS, environment
from merganser import registry
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.deltas import checked_norm
from merganser.inputs.layers import LayerDeltas
from merganser.linalg import lapack
from merganser.workers import one_blas_thread

TIMES = 3  # a rate is the median of so many
VALUES = 2**25  # of the file that is copied, read and written: 128 MiB
ROWS, COLUMNS, TASKS = 2048, 512, 4  # of the matrices that are multiplied: large enough for a core's full rate
SIZES = (256, 768, 1536, 3072)  # of the Gram matrices whose eigenvectors are found
RANK, NOISE = 16, 0.02  # of the fine-tuned models of `benchmarks.models`


def measure_rates() -> Rates:
    """Measure every rate, on one thread of this machine."""
    stage = measured("import torch, merganser.tasks.merge")
    network = measured("import torch, merganser.tasks.evaluate, open_clip, datasets")
    with one_blas_thread(), torch.inference_mode():
        copy, read, write = file_rates()
        gram, product = gram_rate(), product_rate()
        values, vectors, some = eigen_rates(product)
        rates = Rates(
            start=stage[0],
            start_evaluate=network[0],
            floor=stage[1],
            floor_evaluate=network[1],
            copy=copy,
            read=read,
            write=write,
            sha256=hash_rate(),
            norm=norm_rate(),
            add=add_rate(),
            gram=gram,
            product=product,
            values=values,
            vectors=vectors,
            some_vectors=some,
            drm=float("inf"),
            network=network_rate(),
        )
        return replaced(rates, drm=drm_rate(rates))


def replaced(rates: Rates, **changes: float) -> Rates:
    """Return the rates with some of them changed."""
    return Rates(**vars(rates) | changes)


def measured(code: str) -> tuple[float, float]:
    """Return CPU seconds and anonymous bytes of a process that runs this code."""
    runs = [measure(Run([sys.executable, "-c", code], environment=environment())) for _ in range(TIMES)]
    return median(run.cpu_s for run in runs), median(run.peak_anonymous_bytes for run in runs)


def seconds(function: Callable[[], object], times: int = TIMES) -> float:
    """Return the CPU seconds of a call, the median of some; the first of several does not count."""
    if times > 1:
        function()
    found = []
    for _ in range(times):
        started = time.process_time()
        function()
        found.append(time.process_time() - started)
    return median(found)


def file_rates() -> tuple[float, float, float]:
    """Return bytes/s of copying a file, reading it into memory, and writing it."""
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "file", Path(folder) / "copy"
        values = torch.zeros(VALUES)
        size = values.nbytes
        write = seconds(lambda: save_tensors(path, {"values": values}))
        read = seconds(lambda: SafetensorsFile(path).read("values"))
        copy = seconds(lambda: shutil.copyfile(path, other))
        os.sync()
        return size / copy, size / read, size / write


def hash_rate() -> float:
    """Return bytes/s of SHA-256."""
    data = bytes(VALUES)
    return VALUES / seconds(lambda: sha256(data).digest())


def norm_rate() -> float:
    """Return values/s of the check that every read parameter goes through."""
    values = torch.randn(VALUES // 8)
    return len(values) / seconds(lambda: checked_norm(values, "values", "model"))


def add_rate() -> float:
    """Return values/s of adding two tensors into a third."""
    one, other = torch.randn(2, VALUES // 8)
    return len(one) / seconds(lambda: one + other)


def task_matrix(rows: int, columns: int) -> Tensor:
    """Draw a delta of low rank and noise, as `benchmarks.models` does: the spectrum is part of what vectors cost."""
    generator = torch.Generator().manual_seed(rows * columns)
    left, right = torch.randn(rows, RANK, generator=generator), torch.randn(RANK, columns, generator=generator)
    return left @ right / RANK**0.5 + NOISE * torch.randn(rows, columns, generator=generator)


def gram_rate() -> float:
    """Return flop/s of the Gram matrix of a float32 matrix, in float64."""
    matrix = task_matrix(ROWS, COLUMNS)
    return ROWS * COLUMNS**2 / seconds(lambda: lapack.gram(matrix))


def product_rate() -> float:
    """Return flop/s of a product in float64."""
    left, right = (torch.randn(rows, COLUMNS, dtype=torch.float64) for rows in (ROWS, COLUMNS))
    return 2 * ROWS * COLUMNS**2 / seconds(lambda: left @ right)


def network_rate() -> float:
    """Return the flop/s of its matrices at which a transformer's block runs, whatever else it does."""
    block = ResidualAttentionBlock(COLUMNS, COLUMNS // HEAD).eval()
    values = sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 2)
    batch = torch.randn(IMAGES, TOKENS, COLUMNS)
    return 2 * values * IMAGES * TOKENS / seconds(lambda: block(batch))


def eigen_rates(product: float) -> tuple[dict[int, float], dict[int, float], float]:
    """Return seconds per N**3 of eigenvalues and of all vectors, by N; seconds per N K**2 of K vectors one by one.

    What vectors take is measured beside the eigenvalues and one product. The largest is measured once.
    """
    values, vectors, some = {}, {}, []
    for size in SIZES:
        gram = lapack.gram(task_matrix(2 * size, size))

        def timed(count: int, gram: Tensor = gram) -> float:
            return seconds(lambda: lapack.eigh_top_(gram.clone(), count), TIMES if len(gram) < SIZES[-1] else 1)

        reduction, few = timed(0), size // 8
        values[size] = reduction / size**3
        vectors[size] = max(timed(size) - reduction - 2 * size**3 / product, 0.0) / size**3
        if size < SIZES[-1]:
            some.append(max(timed(few) - reduction - 2 * size**2 * few / product, 0.0) / (size * few**2))
    return values, vectors, median(some)


def drm_rate(rates: Rates) -> float:
    """Return values/s of what DRM does with the joint coordinates: what its time is beyond the algebra's."""
    rows = columns = COLUMNS
    deltas = torch.stack([task_matrix(rows, columns + task)[:, :columns] for task in range(TASKS)])
    layer = LayerDeltas("layer", "matrix", tuple(map(str, range(TASKS))), deltas)
    method = registry.get("drm_h")
    spent = seconds(lambda: method.function(layer))
    algebra = basis_s(rows, columns, TASKS, rates) + drm_h_s(rows, columns, TASKS, rates)
    return deltas.numel() / max(spent - algebra, 1e-9)


def as_text(rates: Rates) -> str:
    """Format the rates as text."""
    values, vectors = (
        ", ".join(f"{1e12 * rate:.0f} at {size}" for size, rate in table.items())
        for table in (rates.values, rates.vectors)
    )
    giga = {name: value / 1e9 for name, value in vars(rates).items() if isinstance(value, float)}
    return " ".join(
        (
            f"Start of a stage: {rates.start:.2f} s of CPU time and {rates.floor / 1e6:.0f} MB anonymous;",
            f"of one that builds a network: {rates.start_evaluate:.2f} s and {rates.floor_evaluate / 1e6:.0f} MB.",
            f"GB/s: copy {giga['copy']:.2f}, read {giga['read']:.2f}, write {giga['write']:.2f},",
            f"SHA-256 {giga['sha256']:.2f}.",
            f"10^9 values/s: norm {giga['norm']:.2f}, add {giga['add']:.2f}, DRM {giga['drm']:.3f}.",
            f"Gflop/s: Gram {giga['gram']:.0f} and product {giga['product']:.0f} in float64,",
            f"network {giga['network']:.0f} in float32.",
            f"For an N x N Gram matrix, in ps N^3: eigenvalues {values}; all vectors {vectors} more;",
            f"K of them one by one {1e12 * rates.some_vectors:.0f} ps N K^2.",
        )
    )
