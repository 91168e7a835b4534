"""Models by name on the command line: a folder or file, or a name on a hub; and the hashes of files that are read."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from merganser.checkpoints.adapters.files import adapter_names
from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.companions import companion_names, list_model_files, module_folders
from merganser.checkpoints.reading import ADAPTER_CONFIG, ShardedCheckpoint, open_stored
from merganser.checkpoints.weight_files import SUFFIXES
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.sources.hub import COMMIT, download, head_of, hub_api, hub_errors, hub_refusal, missing
from merganser.sources.installing import gguf_in
from merganser.sources.pointers import HubPointer

HUB_NAME = re.compile(r"(?P<hub>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?")
FILES = (".json", ".yaml", ".yml", *SUFFIXES)
HEAD = "main"


def hub_name(text: str) -> tuple[str, str | None] | None:
    """Split `org/name@revision` into name and revision; None for a path.

    An existing path is a path, and so is a name without revision whose first part is a folder here, or that ends
    like a file.
    """
    match = HUB_NAME.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    place, slash, _ = text.partition("/")
    is_path = not slash or Path(place).is_dir() or text.endswith(FILES)
    return None if is_path and match["revision"] is None else (match["hub"], match["revision"])


def fetch_named(hub: str, revision: str | None) -> tuple[Path, HubPointer, list[str]]:
    """Download a model into the hub's own cache; return its path, its commit, and the left-out files.

    Raises InputError if the model or revision does not exist, or if the hub refuses it or does not answer.
    """
    from huggingface_hub.errors import HTTPError

    asked = revision or HEAD
    source = Path(f"{hub}@{asked}")
    try:
        head = asked if COMMIT.fullmatch(asked) else head_of(hub_api(), hub, asked, "model")
        pointer = HubPointer(hub=hub, revision=head)
        path, left = download(pointer, source)
        return path, pointer, left
    except hub_errors() as error:
        raise InputError(missing(source, hub, asked, error)) from error
    except (HTTPError, OSError) as error:
        refused = hub_refusal(source, hub, error)
        raise InputError(refused or _trouble(source, error)) from error


def _trouble(source: Path, error: Exception) -> str:
    """Return whether the hub does not answer, or what is wrong with its answer."""
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    if isinstance(error, HTTPError | LocalEntryNotFoundError | ConnectionError):
        return f"{source}: there is no such path here, and the hub does not answer ({type(error).__name__})"
    return f"{source}: {next(iter(str(error).splitlines()), type(error).__name__)}"


def read_files(path: Path, copied: bool = False) -> list[str]:
    """Name the files that are read of a model's folder or file, relative to the folder: weights and configuration.

    `copied`: also the files that a merge onto this base gets. Raises InputError if there is no model.
    """
    if (gguf := gguf_in(path)) is not None:
        return [gguf.name]
    modules = module_folders(path)
    names = list_model_files(path, modules) if path.is_dir() else [file.name for file in path.parent.glob(CONFIG)]
    weights = set(adapter_names(names) if path.is_dir() else []) or _weights(path, modules)
    beside = companion_names(names, modules) if copied else [name for name in names if name == CONFIG]
    return sorted(weights | set(beside))


def hashes(path: Path, names: Iterable[str], digest: Callable[[Path], str] = sha256_of) -> dict[str, str]:
    """Hash files of a model; `digest` returns the sha256 of one."""
    folder = path if path.is_dir() else path.parent
    return {name: digest(folder / name) for name in names}


def is_weights(name: str) -> bool:
    """Tell by its name whether a file holds parameters, or an adapter's scales."""
    return name.endswith(SUFFIXES) or name == ADAPTER_CONFIG


def _weights(path: Path, modules: Sequence[str]) -> set[str]:
    stored, folder = open_stored(path, modules), path if path.is_dir() else path.parent
    if isinstance(stored, ShardedCheckpoint):
        return {shard.path.relative_to(folder).as_posix() for shard in stored.shards.values()}
    return {Path(getattr(stored, "path", path)).name}
