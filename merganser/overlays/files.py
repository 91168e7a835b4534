"""The overlay file: `<task>/<parameter>/<kind>.<field>` tensors in one safetensors file."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import torch
from torch import Tensor

from merganser.checkpoints import (
    DTYPES,
    Checkpoint,
    SafetensorsFile,
    Spec,
    layout,
    open_checkpoint,
    replacing,
    spec_of,
    to_bytes,
    write_checkpoint,
)
from merganser.errors import InputError
from merganser.overlays.parts import Dense, LowRank, Part, Parts, tensors_of
from merganser.overlays.thresholded import Thresholded, ThresholdedFactors

FILE = "overlays.safetensors"
KINDS: dict[str, type[Part]] = {part.kind: part for part in (Dense, LowRank, Thresholded, ThresholdedFactors)}


class OverlayWriter:
    """Write parts as they come, one in memory at a time; the file appears when the block ends well.

    Sizes are not known beforehand, so tensors are spooled to disk by dtype and joined behind the header at the end.
    """

    def __init__(self, folder: Path, tasks: tuple[str, ...]) -> None:
        self.path, self.tasks = folder / FILE, tasks
        self._specs: dict[str, Spec] = {}
        self._spools: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()

    def add(self, parameter: str, parts: Parts) -> None:
        """Append the parts of one parameter."""
        for task, part in parts.tasks.items():
            self._append(task, parameter, part)

    def _append(self, task: str, parameter: str, part: Part) -> None:
        for field, tensor in tensors_of(part).items():
            spec = spec_of(tensor)
            self._specs[f"{task}/{parameter}/{part.kind}.{field}"] = spec
            if spec.dtype not in self._spools:
                spool = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115 (the stack closes it)
                self._spools[spec.dtype] = self._stack.enter_context(spool)
            self._spools[spec.dtype].write(to_bytes(tensor))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self._join()

    def _join(self) -> None:
        order = [dtype for dtype in DTYPES if dtype in self._spools]
        order.sort(key=lambda dtype: -DTYPES[dtype].itemsize)
        names = [name for dtype in order for name, spec in self._specs.items() if spec.dtype == dtype]
        header, _ = layout({name: self._specs[name] for name in names}, json.dumps({"tasks": self.tasks}), names)
        with replacing(self.path) as file:
            file.write(header)
            for dtype in order:
                self._spools[dtype].seek(0)
                shutil.copyfileobj(self._spools[dtype], file)


class OverlayFile:
    """Read one task's parts from an overlay file."""

    def __init__(self, path: Path) -> None:
        self.file = SafetensorsFile(path)
        try:
            self.tasks: tuple[str, ...] = tuple(json.loads(self.file.metadata["merganser"])["tasks"])
            self._index = self._indexed()
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not an overlay file ({error}); merge again") from error

    def _indexed(self) -> dict[tuple[str, str], list[str]]:
        index: dict[tuple[str, str], list[str]] = {}
        for key in self.file.names:
            task, name = key.split("/", 1)  # a task's name has no slash, a parameter's may
            parameter, field = name.rsplit("/", 1)
            if field.split(".")[0] not in KINDS:
                raise ValueError(f"unknown part {field}")
            index.setdefault((task, parameter), []).append(key)
        return index

    def delta(self, task: str, parameter: str, shape: tuple[int, ...]) -> Tensor | None:
        """Return what the task adds to a parameter in float32, None when it adds nothing."""
        keys = self._index.get((task, parameter))
        if keys is None:
            return None
        kind = keys[0].rsplit("/", 1)[1].split(".")[0]
        tensors = {key.rsplit(".", 1)[1]: self.file.read(key) for key in keys}
        return KINDS[kind](**tensors).delta(shape)


def open_overlays(merged: Path) -> OverlayFile | None:
    """Open a merged folder's overlays, None when the method has no parts per task."""
    return OverlayFile(merged / FILE) if (merged / FILE).is_file() else None


def task_model(merged: Path, task: str) -> Iterator[tuple[str, Tensor]]:
    """Give a task's own model, parameter by parameter: the shared one plus the task's overlay, in the shared dtype."""
    shared: Checkpoint = open_checkpoint(merged)
    overlays = open_overlays(merged)
    if overlays is not None and task not in overlays.tasks:
        raise InputError(f"{merged / FILE}: has no part for the task {task!r}; it has {', '.join(overlays.tasks)}")
    for name in shared.names:
        tensor = shared.read(name)
        delta = overlays.delta(task, name, tuple(tensor.shape)) if overlays else None
        yield name, tensor if delta is None else (tensor.to(torch.float32) + delta).to(tensor.dtype)


def write_task_model(merged: Path, task: str, out: Path) -> None:
    """Write a task's own model as one safetensors file."""
    shared = open_checkpoint(merged)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(out, {name: shared.spec(name) for name in shared.names}, task_model(merged, task))
