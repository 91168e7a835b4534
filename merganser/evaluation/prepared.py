"""A task's data, prepared once for all evaluations: arrays on disk with one row per example, read in batches.

A folder has one safetensors file per array, and `prepared.json` with the task's kind, settings, metric and classes.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from merganser.checkpoints.tensors import NAMES_OF_DTYPES, SafetensorsFile, Spec, to_bytes
from merganser.errors import InputError, refusing
from merganser.limits import parse_json, read_small

CPU = torch.device("cpu")
ABOUT = "prepared.json"
OWN = "own"  # a folder for the task's own model, where that reads or computes otherwise than the base
HEADER = 512  # bytes that the header of an array may take: how many rows come is known at the end
ABOUT_LIMIT = 2**25  # bytes: of the names of many classes


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data; the next batch is copied to `device` during the computation of this one."""

    folder: Path
    device: torch.device = CPU

    @cached_property
    def about(self) -> dict[str, Any]:
        """Return the task's `kind`, `settings`, `metric` and `classes`, the `count` of examples, and the arrays."""
        path = self.folder / ABOUT
        if not path.is_file():
            raise InputError(f"{path}: no prepared data; run the stage prepare first (`merganser run` does)")
        with refusing(f"{path}: does not describe the prepared data", "prepare it again"):
            about: dict[str, Any] = parse_json(read_small(path, ABOUT_LIMIT))
            if {"kind", "settings", "metric", "classes", "count"} <= about.keys():
                return about
            raise ValueError("it lacks a key")

    @property
    def classes(self) -> list[str]:
        """Return the class names; empty for a kind without classes."""
        return list(self.about["classes"])

    def __len__(self) -> int:
        """Return the number of examples."""
        return int(self.about["count"])

    @property
    def own(self) -> "Prepared | None":
        """Return the inputs of the task's own model, next to its configuration; None if they equal the base's."""
        return replace(self, folder=self.folder / OWN) if (self.folder / OWN).is_dir() else None

    def on(self, device: torch.device) -> "Prepared":
        """Return the same data with batches on a device."""
        return replace(self, device=device)

    def array(self, name: str) -> Tensor:
        """Read a whole array."""
        return self._file(name).read(name)

    def rows(self, names: Sequence[str], places: Sequence[int]) -> dict[str, Tensor]:
        """Read some rows of some arrays, in the given order; they stay on the CPU."""
        files = {name: self._file(name) for name in names}
        return {name: torch.cat([_rows(file, name, place, 1) for place in places]) for name, file in files.items()}

    def batches(
        self, names: Sequence[str], size: int, order: Sequence[int] | None = None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Read all rows of some arrays in batches of a size; `order`: the order of the rows, by default as stored."""
        return copied_ahead(self._read(names, size, order), self.device)

    def _read(self, names: Sequence[str], size: int, order: Sequence[int] | None) -> Iterator[dict[str, Tensor]]:
        if order is not None:
            yield from (self.rows(names, order[start : start + size]) for start in range(0, len(order), size))
            return
        files = {name: self._file(name) for name in names}
        for start in range(0, len(self), size):
            yield {name: _rows(file, name, start, min(size, len(self) - start)) for name, file in files.items()}

    def _file(self, name: str) -> SafetensorsFile:
        file = SafetensorsFile(self.folder / f"{name}.safetensors")
        if name not in file or file.spec(name).shape[:1] != (len(self),):
            raise InputError(f"{file.path}: not {len(self)} rows of {name}; prepare the task again")
        return file


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


def _rows(file: SafetensorsFile, name: str, start: int, count: int) -> Tensor:
    shape = file.spec(name).shape[1:]
    return file.read_piece(name, start * prod(shape), (count, *shape))


def write_prepared(folder: Path, chunks: Iterable[Mapping[str, Tensor]], about: Mapping[str, Any]) -> int:
    """Write a kind's arrays into an empty folder as they arrive; return the number of examples.

    Raises ValueError if an array's rows differ in number or shape.
    """
    files, rows_of, count = dict[str, BinaryIO](), dict[str, Spec](), 0
    with ExitStack() as stack:
        for chunk in chunks:
            for name, rows in chunk.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{name}.safetensors").open("wb"))
                    files[name].write(b" " * HEADER)
                    rows_of[name] = Spec(NAMES_OF_DTYPES[rows.dtype], tuple(rows.shape[1:]))
                files[name].write(to_bytes(rows))
            count += len(next(iter(chunk.values())))
        for name, file in files.items():
            _finish(file, name, Spec(rows_of[name].dtype, (count, *rows_of[name].shape)))
    content = {**about, "count": count, "arrays": sorted(files)}
    (folder / ABOUT).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return count


def _finish(file: BinaryIO, name: str, spec: Spec) -> None:
    """Write the header of an array's file, whose rows were appended one after another."""
    if file.tell() != HEADER + spec.nbytes:
        raise ValueError(f"{name} has {file.tell() - HEADER} bytes, not those of {spec}")
    entry = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [0, spec.nbytes]}
    file.seek(0)
    file.write(
        struct.pack("<Q", HEADER - 8) + json.dumps({name: entry}, separators=(",", ":")).encode().ljust(HEADER - 8)
    )
