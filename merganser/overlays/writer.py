"""Write an overlay file, and the shared deltas next to it."""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Spec, spec_of, to_bytes
from merganser.checkpoints.writing import layout
from merganser.outputs import replacing
from merganser.overlays.index import OverlayIndex, ParameterParts, form_of_part, header_of, stored_tensors
from merganser.overlays.parts import Parts, tensors_of

FILE = "overlays.safetensors"
UNIFIED = "unified.safetensors"


class OverlayWriter:
    """Write parts as they arrive, one in memory at a time; the files appear if the `with` block ends without an error.

    Sizes are not known in advance, so values are spooled to disk by task and dtype and appended to the header at the
    end. The shared deltas, if there are any, are stored once for all tasks, in a file of their own.
    """

    def __init__(self, folder: Path, tasks: tuple[str, ...]) -> None:
        self.folder, self.tasks = folder, tasks
        self._rows: dict[str, ParameterParts] = {}
        self._unified: dict[str, Spec] = {}
        self._mixtures: Mapping[str, Mapping[str, float]] = {}
        self._spools: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()

    def add(self, parameter: str, parts: Parts, shape: tuple[int, ...]) -> None:
        """Append the parts of one parameter of this shape.

        Raises ValueError if their forms differ, or if there are mixtures that differ from those of other parameters.
        """
        if parts.mixtures and self._mixtures not in ({}, parts.mixtures):
            raise ValueError(f"{parameter}: its mixtures differ from those of the parameters before it")
        self._mixtures = parts.mixtures or self._mixtures
        forms = {form_of_part(part, shape) for part in parts.tasks.values()}
        if len(forms) > 1:
            raise ValueError(f"{parameter}: the tasks' parts have different forms: {forms}")
        for form in forms:
            stored = {task: parts.tasks[task] for task in self.tasks if task in parts.tasks}
            self._rows[parameter] = ParameterParts(form, {task: part.count for task, part in stored.items()})
            for task, part in stored.items():
                for tensor in tensors_of(part).values():
                    self._spool(f"{task}/{spec_of(tensor).dtype}", tensor)
        if parts.unified is not None:
            self._unified[parameter] = Spec("F32", shape)
            self._spool(UNIFIED, parts.unified.to(torch.float32))

    def _spool(self, name: str, tensor: Tensor) -> None:
        if name not in self._spools:
            spool = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (the stack closes it)
            self._spools[name] = self._stack.enter_context(spool)
        self._spools[name].write(to_bytes(tensor))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with self._stack:
            if error is None:
                index = OverlayIndex(self.tasks, self._rows, self._mixtures)
                specs = stored_tensors(index)
                self._join(FILE, header_of(index, specs), list(specs))
                if self._unified:
                    self._join(UNIFIED, layout(self._unified, {}, list(self._unified))[0], [UNIFIED])

    def _join(self, file_name: str, header: bytes, spools: list[str]) -> None:
        with replacing(self.folder / file_name) as file:
            file.write(header)
            for name in spools:
                self._spools[name].seek(0)
                shutil.copyfileobj(self._spools[name], file)
