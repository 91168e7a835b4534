"""Measure what merges take: `python -m tests.merging.peaks` prints, by method, its peak in float32 copies of a layer.

What a process holds is read from Linux's /proc, so that it counts torch's memory and numpy's. Run in a process of its
own: malloc is made to return all that is freed.
"""

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser import registry
from merganser.inputs.layers import LayerSource
from merganser.linalg import loops  # noqa: F401 (loaded before memory is measured)
from merganser.merging.method import Method
from merganser.workers import M_MMAP_THRESHOLD, one_blas_thread
from tests.laws.layers import Layers, made_layer, with_start
from tests.laws.test_registry_properties import as_read, choices

TASKS, ROWS, COLUMNS = 3, 700, 800
FEW = {"steps": 2}  # of gradient descent: further ones take no more memory
RETURNED = 1 << 16  # bytes: larger tensors go back to the system when they are freed
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def held(key: str) -> int:
    """Return the bytes that the process holds (VmRSS), or held at most since `forget` (VmHWM)."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])


@contextmanager
def alone() -> Iterator[None]:
    """Merge as the driver does, but return all freed memory to the system."""
    with torch.inference_mode(), one_blas_thread():
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, RETURNED)
        yield


def copies(method: Method, values: dict[str, Any], deltas: Tensor) -> float:
    """Return the peak memory of the first pass and the merge of one layer, in copies of its deltas (T, M, N)."""
    layers = as_read(method.name, [made_layer("w", "matrix", deltas)])
    source: LayerSource = with_start(method, Layers(layers))
    with alone():
        merged = method.bind(values, source)(layers[0])  # what the first call allocates for good is not counted
        del merged
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text("5")
        before = held("VmRSS")
        merged = method.bind(values, source)(layers[0])
        peak = held("VmHWM") - before
    del merged
    return 1 + peak / (4 * len(source.tasks) * ROWS * COLUMNS)


def main() -> None:
    """Print the peak of each method over its choices, as JSON, a line a method."""
    deltas = 0.01 * torch.randn(TASKS, ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    for name in sys.argv[1:] or registry.names():
        method = registry.get(name)
        few = {key: value for key, value in FEW.items() if key in method.parameters.model_fields}
        peaks = {str(each): copies(method, method.validate(name, few | each), deltas) for each in choices(name)}
        worst = max(peaks, key=lambda given: peaks[given])
        print(json.dumps({"method": name, "copies": round(peaks[worst], 2), "values": worst}), flush=True)


if __name__ == "__main__":
    main()
