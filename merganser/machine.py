"""What this machine does in a second: what times are expected by."""

import tempfile
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from merganser.workers import one_blas_thread

MOVED = 2**24  # bytes that are written, read and hashed to see how fast this machine is
WIDTH, HEADS, TOKENS, EXAMPLES = 512, 8, 50, 16  # of a transformer's block, and of what runs through it to see that
TIMES = 3  # of which the fastest counts: the first one warms up


@cache
def bytes_a_second() -> float:
    """Return how many bytes this machine writes, reads and hashes in a second of one core."""
    with tempfile.TemporaryDirectory() as folder:
        file, content = Path(folder) / "file", bytes(MOVED)

        def move() -> None:
            file.write_bytes(content)
            sha256(file.read_bytes())

        return MOVED / _least_seconds(move, time.process_time)


@cache
def flop_a_second(device: str) -> float:
    """Return how many operations of a transformer's matrices in float32 a device does in a second, a CPU on one core.

    Raises LookupError for a GPU where there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise LookupError(device)
    block = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, device=device).eval()
    batch = torch.zeros(EXAMPLES, TOKENS, WIDTH, device=device)

    def compute() -> None:
        block(batch).sum().item()  # waits for a GPU

    with one_blas_thread(), torch.inference_mode():
        seconds = _least_seconds(compute, time.perf_counter if device == "cuda" else time.process_time)
    return 2 * 12 * WIDTH**2 * EXAMPLES * TOKENS / seconds


def _least_seconds(do: Callable[[], None], clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(TIMES):
        began = clock()
        do()
        seconds.append(clock() - began)
    return min(seconds)
