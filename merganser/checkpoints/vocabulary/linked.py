"""Write a model with some tensors of its own: the others stay where they lie, and links lead there."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.reading import CHANGED, ShardedCheckpoint, Stored
from merganser.checkpoints.tensors import Spec, StoredCheckpoint
from merganser.checkpoints.weight_files import MODEL, SINGLE
from merganser.checkpoints.writing import write_single
from merganser.errors import InputError

Made = tuple[Spec, Callable[[], Tensor]]  # a tensor that is made when it is written


def write_linked(stored: StoredCheckpoint, changed: Mapping[str, Made], folder: Path) -> None:
    """Write a checkpoint's weights into a folder, those that change as files of their own.

    Which shard each tensor is of stays as it was. Raises InputError where the weights lie in no files that are linked.
    """
    files = {name: _file(stored, name) for name in stored.names}
    index: dict[str, str] = {}
    for number, path in enumerate(sorted(set(files.values()))):
        place = path.name if path.name not in SINGLE else f"weights{path.suffix}"
        place = f"{number}-{place}" if (folder / place).is_symlink() else place  # shards in several folders
        (folder / place).symlink_to(path.resolve())
        own = [name for name in files if files[name] == path]
        made = {name: changed[name] for name in own if name in changed}
        if made:
            tensors = ((name, make()) for name, (_, make) in made.items())
            write_single(folder / f"{place}{CHANGED}", {name: spec for name, (spec, _) in made.items()}, tensors)
        index |= {name: f"{place}{CHANGED if name in made else ''}" for name in own}
    (folder / f"{MODEL}.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _file(stored: StoredCheckpoint, name: str) -> Path:
    file = stored.shards[name] if isinstance(stored, ShardedCheckpoint) else stored
    if not isinstance(file, Stored):
        raise InputError(f"{name}: lies in no file of its own; save the model as safetensors first")
    return file.path
