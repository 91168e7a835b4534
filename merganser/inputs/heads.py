"""Heads: the last parameters of each task's own checkpoint, which are never merged.

A file has the tensors under the base's names. Its header has the patterns that matched them, and the class names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.checkpoints.adapters.files import Adapter
from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.configurations import class_labels
from merganser.checkpoints.kinds import is_head
from merganser.checkpoints.tensors import Checkpoint, SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError, refusing
from merganser.limits import parse_json


@dataclass(frozen=True)
class Head:
    """A task's head: its tensors, the patterns of their names, and the names or numbers of the classes."""

    tensors: Mapping[str, Tensor]
    patterns: Sequence[str]
    classes: Sequence[str]

    def put_on(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Return a model's parameters with this head instead of their own."""
        for name, value in parameters:
            if not is_head(name, self.patterns):
                yield name, value
        yield from self.tensors.items()


NO_HEAD = Head({}, [], [])  # of a task that has no model: a merge's own last parameters stay


def write_head(model: Checkpoint | Adapter, patterns: Sequence[str], source: Path, task: str, out: Path) -> None:
    """Write the head of a task's model or adapter; raise InputError if the patterns match nothing.

    `source`: the model's folder or file, whose configuration has the class names.
    """
    names = list(model.updates) if isinstance(model, Adapter) else list(model.names)
    own = [name for name in names if is_head(name, patterns)]
    tensors = _adapters(model, own) if isinstance(model, Adapter) else {name: model.read(name) for name in own}
    if patterns and not tensors:
        has = f"its parameters are {', '.join(names[:3])}, ... {names[-1]}"
        raise InputError(f"{task}: no parameter matches base.heads ({', '.join(patterns)}); {has}")
    content = {"patterns": list(patterns), "classes": class_names(source) if patterns else []}
    save_tensors(out, tensors, json.dumps(content))


def read_head(path: Path) -> Head:
    """Read a head that `write_head` wrote."""
    file = SafetensorsFile(path)
    with refusing(f"{path}: not the head of a task", "extract it again"):
        content = parse_json(file.metadata["merganser"])
        tensors = {name: file.read(name) for name in file.names}
        return Head(tensors, content["patterns"], content["classes"] or _numbered(tensors))


def _numbered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Number a head's outputs: the rows that no other linear map of the head reads; nothing if there are several."""
    rows, columns = ({value.shape[side] for value in tensors.values() if value.dim() > 1} for side in (0, 1))
    last = rows - columns or rows
    return [f"LABEL_{number}" for number in range(max(last))] if len(last) == 1 else []


def _adapters(adapter: Adapter, names: Sequence[str]) -> dict[str, Tensor]:
    """Read the head's tensors that an adapter stores whole (`modules_to_save`)."""
    kept = {name: adapter.updates[name] for name in names}
    partial = [name for name, each in kept.items() if each.whole is None or each.of_layer or each.added or each.tokens]
    if partial:
        raise InputError(f"{adapter.path}: {partial[0]} is a head that is not saved whole; list it in modules_to_save")
    return {name: adapter.tensors.read(update.whole) for name, update in kept.items() if update.whole is not None}


def class_names(source: Path) -> list[str]:
    """Read the class names from the configuration of a model's folder or file; return none if it has none."""
    folder = source if source.is_dir() else source.parent
    with refusing(f"{folder / CONFIG}: not the configuration of a model", "fetch it again"):
        found = read_config(folder / CONFIG) or {}
        names: dict[str, Any] = found.get("id2label") or {}
        said = (class_labels(folder) or {}).get("", [])  # timm's, perhaps of an older head
        others = said if len(said) == found.get("num_classes", len(said)) else []
        return [str(names[number]) for number in sorted(names, key=int)] or others
