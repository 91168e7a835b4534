"""Which weights a model's folder names itself: by `transformers_weights` in its configuration, and by an index.

As `from_pretrained` reads them: `transformers_weights` comes before any usual name, and the names of shards are paths
from the model's folder on. No name may lead out of it.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.tensors import HEADER_LIMIT
from merganser.checkpoints.weight_files import is_index, main_file
from merganser.errors import InputError, refusing
from merganser.limits import check_link, parse_json, read_small

KEY = "transformers_weights"
ENDINGS = (".safetensors", ".safetensors.index.json")


def main_in(folder: Path, names: Collection[str]) -> str | None:
    """Return the file that holds a folder's weights, or the index of its shards, as a path from the folder on.

    `names`: of the files in the folder. None where no name is known.
    """
    named = (read_config(folder / CONFIG) or {}).get(KEY)
    return main_file(names) if named is None else _checked(named, folder)


def weights_in(folder: Path, names: Collection[str]) -> list[str]:
    """Return the files of a folder's weights as paths from the folder on: the file, or the index and all its shards."""
    main = main_in(folder, names)
    if main is None or not is_index(main):
        return [main] if main else []
    return [main, *sorted(set(weight_map(folder / main, folder).values()))]


def lacking(folder: Path, names: Collection[str]) -> list[str]:
    """Return the weights that a folder's configuration or its index names and that are not there, as of a download."""
    named = (read_config(folder / CONFIG) or {}).get(KEY)
    if isinstance(named, str) and not (folder / named).exists():
        return [_inside(named, folder, folder / CONFIG)]
    return [name for name in weights_in(folder, names) if not (folder / name).exists()]


def weight_map(index: Path, folder: Path) -> dict[str, str]:
    """Return the shard of each tensor as an index says it, as a path from the model's folder on.

    Raises InputError where one leads out of the folder.
    """
    check_link(index, folder)
    with refusing(f"{index}: not an index of shards", "fetch it again"):
        names: dict[str, str] = parse_json(read_small(index, HEADER_LIMIT))["weight_map"]
        files = {file: _inside(file, folder, index) for file in set(names.values())}
    return {name: files[file] for name, file in names.items()}


def _checked(named: Any, folder: Path) -> str:
    """Return the path that `transformers_weights` names; raise InputError for one that transformers would not load."""
    where = f"{folder / CONFIG}: {KEY}"
    if not isinstance(named, str) or not named.endswith(ENDINGS):
        raise InputError(f"{where}: {named!r} is neither a safetensors file nor an index of such, {ENDINGS[1]}")
    name = _inside(named, folder, folder / CONFIG)
    if not (folder / name).exists():
        raise InputError(f"{where}: {named} is not there, and transformers loads no other file; fetch it again")
    return name


def _inside(name: str, folder: Path, where: Path) -> str:
    """Return a file's path from a folder on, where it lies in it; raise InputError where it leads out."""
    place = os.path.normpath(folder / name)
    inner = os.path.relpath(place, folder)
    if not name.isprintable() or inner in ("", ".") or inner.split(os.sep)[0] == "..":
        raise InputError(f"{where}: names the file {name!r} outside its folder; only files in {folder} are read")
    return Path(inner).as_posix()
