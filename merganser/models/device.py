"""The declared device, and copies to it ahead of use."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.models import DeviceName


def usable(device: DeviceName, place: str) -> DeviceName:
    """Return an available device; raise InputError naming the place in params.yaml that declares a missing GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        remedy = "run it where torch.cuda.is_available() says True, or set it to cpu"
        raise InputError(f"{place}: cuda, and this stage sees no usable GPU; {remedy}")
    return device


def copied_ahead(batches: Iterator[Mapping[str, Tensor]], device: torch.device) -> Iterator[Mapping[str, Tensor]]:
    """Yield batches on a device; a thread reads the next batch and copies it to a GPU during this one's computation.

    The copy is from page-locked memory, on its own stream. On the CPU the batches stay as they are.
    """
    if device.type == "cpu":
        yield from batches
        return
    stream = torch.cuda.Stream(device)

    def fetch() -> tuple[dict[str, Tensor], torch.cuda.Event] | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(stream):
            moved = {name: rows.pin_memory().to(device, non_blocking=True) for name, rows in batch.items()}
            return moved, stream.record_event()

    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(fetch)
        while (taken := coming.result()) is not None:
            coming = reader.submit(fetch)
            moved, copied = taken
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            for rows in moved.values():
                rows.record_stream(current)  # its memory is not given away while this stream computes with it
            yield moved
