"""The files that a merge reads of a model on disk, with their hashes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from merganser.checkpoints.adapters.files import adapter_names
from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.companions import companion_names, list_model_files
from merganser.checkpoints.modules import module_folders
from merganser.checkpoints.reading import ADAPTER_CONFIG, ShardedCheckpoint, open_stored
from merganser.checkpoints.weight_files import TORCH_SUFFIXES
from merganser.hashes import sha256_of
from merganser.sources.gguf import gguf_in

WEIGHTS = (".safetensors", *TORCH_SUFFIXES)


def read_files(path: Path, copied: bool = False) -> list[str]:
    """Name the files that are read of a model's folder or file: its weights and configuration, from its folder on.

    `copied`: also what a merge onto this base has from there. Raises InputError where there is no model.
    """
    if (gguf := gguf_in(path)) is not None:
        return [gguf.name]
    modules = module_folders(path)
    names = list_model_files(path, modules) if path.is_dir() else [file.name for file in path.parent.glob(CONFIG)]
    weights = set(adapter_names(names) if path.is_dir() else []) or _weights(path, modules)
    beside = companion_names(names, modules) if copied else [name for name in names if name == CONFIG]
    return sorted(weights | set(beside))


def hashes(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Hash files of a model."""
    folder = path if path.is_dir() else path.parent
    return {name: sha256_of(folder / name) for name in names}


def is_weights(name: str) -> bool:
    """Tell by its name whether a file holds parameters, or what an adapter's are scaled by."""
    return name.endswith(WEIGHTS) or name == ADAPTER_CONFIG


def _weights(path: Path, modules: Sequence[str]) -> set[str]:
    stored, folder = open_stored(path, modules), path if path.is_dir() else path.parent
    if isinstance(stored, ShardedCheckpoint):
        return {shard.path.relative_to(folder).as_posix() for shard in stored.shards.values()}
    return {Path(getattr(stored, "path", path)).name}
