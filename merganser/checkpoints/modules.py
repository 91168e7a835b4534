"""Modules of a model that have weights of their own, in folders beside it: a sentence encoder's `2_Dense`, projections.

They are further files of the model: the name of a tensor is its folder's, two slashes, and its own there.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from merganser.checkpoints.named_weights import weights_in
from merganser.checkpoints.reading import ADAPTER_CONFIG, open_stored
from merganser.checkpoints.tensors import IN_MODULE
from merganser.checkpoints.weight_files import weight_names

# What holds the whole model once more: hidden, in other formats, or as it was in training.
COPIES = re.compile(r"\..*|checkpoint-\d+|global_step\d+|original|onnx|openvino|gguf|mlx|coreml|flax", re.IGNORECASE)


def module_folders(folder: Path) -> list[str]:
    """Name the folders in a model's folder that hold weights of their own, and not those of the model once more."""
    if not folder.is_dir():
        return []
    having = [path for path in sorted(folder.iterdir()) if may_be_module(path)]
    if having:  # but for those that hold the model's own
        own = {PurePosixPath(name).parts[0] for name in weights_in(folder, os.listdir(folder))}
        having = [path for path in having if path.name not in own]
    whole = set(open_stored(folder).names) if having else set[str]()
    return [path.name for path in having if not whole.issuperset(open_stored(path).names)]


def may_be_module(path: Path) -> bool:
    """Tell by names alone whether a path in a model's folder is a folder with weights of its own."""
    if not path.is_dir() or COPIES.fullmatch(path.name):
        return False
    names = [file.name for file in path.iterdir() if file.is_file()]
    return bool(weight_names(names)) and ADAPTER_CONFIG not in names


def shared_modules(models: Iterable[Path]) -> list[str]:
    """Name the modules that all models have: of some folders and files."""
    first, *others = [module_folders(path) for path in models]
    return [name for name in first if all(name in own for own in others)]


def modules_in(names: Iterable[str]) -> Sequence[str]:
    """Name the modules that tensors of these names are in."""
    return list(dict.fromkeys(name.partition(IN_MODULE)[0] for name in names if IN_MODULE in name))
