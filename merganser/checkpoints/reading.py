"""Open a checkpoint of any format as named tensors that are read on demand.

A checkpoint is a safetensors file, torch weights (loaded with `weights_only`), a folder with one of these, or a folder
of shards of either kind with their index. Names, shapes and dtypes come from the first bytes. Tensors that transformers
stores twice, or that are no parameters, are left out: see `architecture`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.architecture import Architecture, architecture_of, surplus_of
from merganser.checkpoints.kinds import applied_as_stored, is_stack
from merganser.checkpoints.tensors import (
    DTYPES,
    IN_MODULE,
    Checkpoint,
    FileCheckpoint,
    Part,
    Rows,
    SafetensorsFile,
    Spec,
    StoredCheckpoint,
    name_in_file,
    tensor_name,
    unwrapped,
)
from merganser.checkpoints.torch_files import open_torch
from merganser.checkpoints.views import View, matrices_of, unstacked
from merganser.checkpoints.weight_files import (
    ADAPTER_CONFIG,
    ADAPTER_FILES,
    MODEL,
    TORCH_SUFFIXES,
    adapter_in,
    candidates,
    is_index,
    main_in,
    weight_map,
    without_weights,
    written_like,
)
from merganser.errors import InputError
from merganser.limits import check_file, check_files

CHANGED = ".changed"  # behind a shard's name: a file of those of its tensors that were made anew (linked.py)
DESCRIPTION = "source.json"  # where a fetched checkpoint came from


@dataclass(frozen=True)
class ShardedCheckpoint(StoredCheckpoint):
    """Shards named by an index, and the weights of a model's modules in folders of their own."""

    shards: Mapping[str, FileCheckpoint]  # by tensor name
    folder: Path  # of the model

    @cached_property
    def specs(self) -> dict[str, Spec]:
        return {name: shard.spec(name_in_file(name)) for name, shard in self.shards.items()}

    def read(self, name: str) -> Tensor:
        return self.shards[name].read(name_in_file(name))

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        return self.shards[name].read_piece(name_in_file(name), start, shape)

    def memory(self, name: str) -> object:
        return self.shards[name].memory(name_in_file(name))


def place_of(checkpoint: Checkpoint, name: str) -> tuple[FileCheckpoint, str] | None:
    """Return the file with a tensor in its shown layout, and its name there; None for a computed tensor.

    Only rows of a tensor in a file can be read alone.
    """
    if isinstance(checkpoint, View):
        part = checkpoint.stored.get(name)
        lies_there = isinstance(part, str) and name not in checkpoint.transposed
        return place_of(checkpoint.inner, part) if lies_there and isinstance(part, str) else None
    if isinstance(checkpoint, ShardedCheckpoint):
        return checkpoint.shards[name], name_in_file(name)
    return (checkpoint, name) if isinstance(checkpoint, FileCheckpoint) else None


def read_part(checkpoint: Checkpoint, part: Part) -> Tensor:
    """Read one tensor, or some of its rows."""
    if isinstance(part, str):
        return checkpoint.read(part)
    place = place_of(checkpoint, part.name)
    assert place, f"{part.name} lies in no file as it is shown: it is read whole"
    file, stored = place
    return file.read_rows(replace(part, name=stored))


def read_pinned(checkpoint: Checkpoint, part: Part) -> Tensor:
    """Read a tensor, or some of its rows, into page-locked memory, from which a GPU can copy in the background."""
    whole = checkpoint.spec(tensor_name(part))
    spec = whole if isinstance(part, str) else part.spec(whole)
    values = torch.empty(spec.shape, dtype=DTYPES[spec.dtype], pin_memory=True)
    read_into(values, checkpoint, part)
    return values


def read_into(values: Tensor, checkpoint: Checkpoint, part: Part) -> None:
    """Read a tensor, or some of its rows, in any dtype and shape; directly from the file if it is stored so."""
    name, rows = (part, None) if isinstance(part, str) else (part.name, part)
    file, stored = place_of(checkpoint, name) or (None, name)
    if isinstance(file, SafetensorsFile) and values.is_contiguous():
        whole = file.spec(stored)
        if DTYPES[whole.dtype] == values.dtype:
            file.fill(values, stored, rows.first(whole) if rows else 0)
            return
    values.copy_(read_part(checkpoint, part).reshape(values.shape))


def open_checkpoint(path: Path, modules: Sequence[str] = ()) -> Checkpoint:
    """Open a checkpoint folder or file, and some of the modules in its folder.

    Raises InputError if it is missing, truncated or of no known format.
    """
    stored = open_stored(path, modules)
    surplus = surplus_of(stored, architecture_of(path if path.is_dir() else path.parent))
    names = {name: name for name in stored.names if name not in surplus}
    return View(stored, names, dropped=surplus) if surplus else stored


def open_for_merging(path: Path, modules: Sequence[str] = ()) -> Checkpoint:
    """Open a checkpoint for methods: every linear map as out x in, and stacks as their matrices.

    `in_file` converts back.
    """
    checkpoint, architecture = open_checkpoint(path, modules), architecture_of(path if path.is_dir() else path.parent)
    parts: dict[str, Part] = {}
    for name, spec in ((name, checkpoint.spec(name)) for name in checkpoint.names):
        parts |= matrices_of(name, spec.shape[0]) if is_stack(name, spec) else {name: name}
    shown = View(checkpoint, parts, dropped=checkpoint.dropped)
    experts = applied_as_stored(checkpoint.specs)
    swapped = frozenset(
        name
        for name, part in parts.items()
        if (isinstance(part, Rows) and part.name in experts) or architecture.is_in_by_out(name, shown.spec(name).shape)
    )
    return replace(shown, transposed=swapped) if swapped or set(parts) != set(checkpoint.names) else checkpoint


def innermost(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint that nested views show."""
    return innermost(checkpoint.inner) if isinstance(checkpoint, View) else checkpoint


def files_of(checkpoint: Checkpoint) -> dict[Path, FileCheckpoint]:
    """Return the files of a checkpoint, by path; none for a checkpoint in memory."""
    return {file.path: file for _, file in _files(innermost(checkpoint))}


def written_as(checkpoint: Checkpoint) -> str:
    """Return the stem of the files of this kind of model."""
    path = next(iter(files_of(checkpoint)), None)
    return written_like(path.name) if path else MODEL


def architecture_beside(checkpoint: Checkpoint) -> Architecture:
    """Read the architecture next to a checkpoint's file; empty for a checkpoint in memory."""
    stored = innermost(checkpoint)
    if isinstance(stored, ShardedCheckpoint):
        return architecture_of(stored.folder)
    return architecture_of(stored.path.parent) if isinstance(stored, FileCheckpoint) else Architecture()


def wrappers_of(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the training wrappers that were removed from the names in a checkpoint's files."""
    return frozenset[str]().union(*(file.wrappers for file in files_of(checkpoint).values()))


def shard_names(checkpoint: Checkpoint) -> dict[str, str] | None:
    """Return the name of the shard that holds each tensor; None for a checkpoint that is not a set of shards."""
    if isinstance(checkpoint, View):
        whole, inner = unstacked(checkpoint), shard_names(checkpoint.inner)
        assert isinstance(whole, View)
        stored = {name: tensor_name(part) for name, part in whole.stored.items()}
        return inner and {name: inner[own] for name, own in stored.items() if own in inner}
    if not isinstance(checkpoint, ShardedCheckpoint):
        return None
    files = {name: shard.path.name.removesuffix(CHANGED) for name, shard in checkpoint.shards.items()}
    return {name: file for name, file in files.items() if IN_MODULE not in name}


def open_stored(path: Path, modules: Sequence[str] = ()) -> StoredCheckpoint:
    """Open a checkpoint folder or file with everything in it, and some of the modules in its folder."""
    main = _open_whole(path)
    if not modules:
        return main
    parts = {f"{module}{IN_MODULE}": _open_whole(path / module) for module in modules}
    shards = {f"{prefix}{name}": shard for prefix, part in {"": main, **parts}.items() for name, shard in _files(part)}
    return ShardedCheckpoint(shards, path)


def _files(stored: Checkpoint) -> Iterator[tuple[str, FileCheckpoint]]:
    if isinstance(stored, ShardedCheckpoint):
        yield from stored.shards.items()
    elif isinstance(stored, FileCheckpoint):
        yield from ((name, stored) for name in stored.names)


def _open_whole(path: Path) -> StoredCheckpoint:
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint; give a checkpoint folder or a safetensors file")
    if not path.is_dir():
        check_file(path)
        return _open_main(path, path.parent)
    check_files(path)
    names = [file.name for file in path.iterdir() if file.is_file()]
    main = main_in(path, set(names) - set(ADAPTER_FILES))
    if main is not None and not (ADAPTER_CONFIG in names and main in candidates(names)):
        return _open_main(path / main, path)
    raise InputError(f"{path}: {without_weights(path, names)}")


def _open_main(path: Path, folder: Path) -> StoredCheckpoint:
    """Open a model's file of weights or the index of its shards; `folder`: that of its configuration."""
    if is_index(path.name):
        return _open_shards(path, folder)
    file = _open_file(path)
    if path.name not in ADAPTER_FILES and (known := adapter_in(file.names)) is not None:
        raise InputError(f"{path}: {known}")
    return file if path.parent == folder else ShardedCheckpoint(dict.fromkeys(file.names, file), folder)


READERS: dict[str, Callable[[Path], FileCheckpoint]] = {**dict.fromkeys(TORCH_SUFFIXES, open_torch)}


def _open_file(path: Path) -> FileCheckpoint:
    return READERS.get(path.suffix, SafetensorsFile)(path)


def _open_shards(index: Path, folder: Path) -> ShardedCheckpoint:
    names = unwrapped(weight_map(index, folder), index)
    files = sorted(set(names.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise InputError(f"{index}: the shard {missing[0]} is missing; fetch it again")
    shards = {file: _open_file(folder / file) for file in files}
    absent = sorted(name for name, file in names.items() if name not in shards[file])
    if absent:
        raise InputError(f"{index}: {absent[0]} is not in its shard {names[absent[0]]}; fetch it again")
    _check_twice(index, shards)
    unnamed = {name: shard for shard in shards.values() for name in shard.names}  # whole shards are loaded
    return ShardedCheckpoint(unnamed | {name: shards[file] for name, file in names.items()}, folder)


def _check_twice(index: Path, shards: Mapping[str, FileCheckpoint]) -> None:
    """Refuse a tensor with different values in two shards: transformers takes the last one."""
    holding: dict[str, str] = {}
    for file, shard in shards.items():
        for name in () if file.endswith(CHANGED) else shard.names:
            first = holding.setdefault(name, file)
            if first != file and not _are_one(shards[first], shard, name):
                both = f"{first} and {file} hold other values of {name}"
                raise InputError(f"{index}: {both}, and loaders disagree on which one they read; save the model again")


def _are_one(one: StoredCheckpoint, other: StoredCheckpoint, name: str) -> bool:
    return one.spec(name) == other.spec(name) and torch.equal(one.read(name), other.read(name))
