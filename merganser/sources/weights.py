"""Bring a model's weights into a folder as safetensors, one file or the shards it has."""

import os
import shutil
from pathlib import Path

from merganser.checkpoints.named_weights import main_in, weight_map
from merganser.checkpoints.reading import ShardedCheckpoint, open_checkpoint, wrappers_of, written_as
from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.checkpoints.shards import shards_like
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import View, stored_specs
from merganser.checkpoints.weight_files import INDEXED, NAMES, written_like
from merganser.checkpoints.writing import write_model
from merganser.errors import InputError
from merganser.limits import check_link

USUAL = tuple(name for name in NAMES if name.endswith(INDEXED))


def install_weights(path: Path, folder: Path, strip: str = "") -> Checkpoint:
    """Copy a checkpoint's safetensors files, or write it as such where it is torch weights or its names change.

    `path`: its folder, or its file. One file gets the name that its reader looks for. Returns the checkpoint as it was
    read. Raises InputError for missing, truncated and misplaced shards.
    """
    checkpoint = open_checkpoint(path)
    shown = _stripped(checkpoint, strip, path) if strip else checkpoint
    index = None if wrappers_of(checkpoint) else _index_of(path, shown)
    if isinstance(shown, SafetensorsFile) and not wrappers_of(checkpoint):
        if path.is_dir():
            check_link(shown.path, path)
        shutil.copyfile(shown.path, folder / f"{written_like(shown.path.name)}.safetensors")
    elif index:
        _copy_shards(index, folder)
    else:
        tensors = ((name, shown.read(name)) for name in shown.names)
        write_model(folder, stored_specs(shown), tensors, shards_like(shown), written_as(shown))
    return checkpoint


def _index_of(path: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the index of a folder's shards, or the index that is given, where all can be copied under their names."""
    if not isinstance(checkpoint, ShardedCheckpoint):
        return None
    place = path if path.is_dir() else path.parent
    main = main_in(place, os.listdir(place)) if path.is_dir() else path.name
    plain = main in USUAL and all(shard.path.parent == place for shard in checkpoint.shards.values())
    return place / main if main and plain else None


def _copy_shards(index: Path, folder: Path) -> None:
    for name in [index.name, *sorted(set(weight_map(index, index.parent).values()))]:
        check_link(index.parent / name, index.parent)
        shutil.copyfile(index.parent / name, folder / name)


def _stripped(checkpoint: Checkpoint, prefix: str, path: Path) -> View:
    """Take a prefix off names; raise InputError where none has it, or two names become one."""
    stored = {name.removeprefix(prefix): name for name in checkpoint.names}
    if len(stored) < len(checkpoint.names):
        raise InputError(f"{path}: strip: without {prefix!r} in front two parameters have one name")
    if prefix not in {name[: len(prefix)] for name in checkpoint.names}:
        raise InputError(f"{path}: strip: no parameter begins with {prefix!r}, the first is {checkpoint.names[0]}")
    return View(checkpoint, stored)
