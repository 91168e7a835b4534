"""The GPUs of this machine, and those of each stage that runs in this worker."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

from dvcfleet.errors import UserError

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpus_here() -> tuple[str, ...]:
    """Return the GPUs that this process may use: those in CUDA_VISIBLE_DEVICES, else all of the machine."""
    named = os.environ.get(GPUS_VARIABLE)
    if named is not None:
        # CUDA ignores what follows a name of none, and all of a list that names one twice.
        gpus = tuple(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, named.split(","))))
        return gpus if len(set(gpus)) == len(gpus) else ()
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(str(number) for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU")))


_OWN: dict[str, tuple[str, ...]] = {}
_OWN_LOCK = threading.Lock()


@contextmanager
def own_gpus(name: str, count: int) -> Iterator[tuple[str, ...]]:
    """Reserve free GPUs of this worker for a stage, and yield their names; raise UserError if there are too few."""
    if not count:
        yield ()
        return
    with _OWN_LOCK:
        # Ray gives a worker different GPUs for each stage.
        here = gpus_here()
        taken = {gpu for gpus in _OWN.values() for gpu in gpus}
        gpus = tuple(gpu for gpu in here if gpu not in taken)[:count]
        if len(gpus) < count:
            raise UserError(f"stage {name}: asks for {count} GPUs; its worker has {len(here)}, not all free")
        _OWN[name] = gpus
    try:
        yield gpus
    finally:
        with _OWN_LOCK:
            del _OWN[name]
