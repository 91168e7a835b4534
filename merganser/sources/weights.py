"""Bring a model's weights into a folder as safetensors, one file or the shards it has."""

import shutil
from pathlib import Path

from merganser.checkpoints.reading import open_checkpoint, wrappers_of, written_as
from merganser.checkpoints.safetensors_file import HEADER_LIMIT, SafetensorsFile
from merganser.checkpoints.shards import shards_like
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import View, stored_specs
from merganser.checkpoints.weight_files import written_like
from merganser.checkpoints.writing import write_model
from merganser.errors import InputError
from merganser.limits import check_link, parse_json, read_small


def install_weights(path: Path, folder: Path, strip: str = "") -> Checkpoint:
    """Copy a checkpoint's safetensors files, or write it as such where it is torch weights or its names change.

    `path`: its file, or the index of its shards. One file gets the name that its reader looks for. Returns the
    checkpoint as it was read. Raises InputError for missing, truncated and misplaced shards.
    """
    checkpoint = open_checkpoint(path)
    shown = _stripped(checkpoint, strip, path) if strip else checkpoint
    is_renamed = bool(wrappers_of(checkpoint))
    if isinstance(shown, SafetensorsFile) and not is_renamed:
        shutil.copyfile(path, folder / f"{written_like(path.name)}.safetensors")
    elif not (isinstance(shown, View) or is_renamed) and path.name.endswith(".safetensors.index.json"):
        _copy_shards(path, folder)
    else:
        tensors = ((name, shown.read(name)) for name in shown.names)
        write_model(folder, stored_specs(shown), tensors, shards_like(shown), written_as(shown))
    return checkpoint


def _copy_shards(index: Path, folder: Path) -> None:
    used = sorted(set(parse_json(read_small(index, HEADER_LIMIT))["weight_map"].values()))
    for name in [index.name, *used]:
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
