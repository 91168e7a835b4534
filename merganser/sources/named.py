"""Models by name: the folder or file where one lies, or its name on a hub, as it is written on the command line."""

import re
from pathlib import Path

from merganser.checkpoints.weight_files import TORCH_SUFFIXES
from merganser.errors import InputError
from merganser.sources.hub import COMMIT, download, head_of, hub_api, hub_errors, hub_refusal, missing
from merganser.sources.pointers import HubPointer

HUB_NAME = re.compile(r"(?P<hub>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?")
FILES = (".safetensors", ".json", ".yaml", ".yml", *TORCH_SUFFIXES)
HEAD = "main"


def hub_name(text: str) -> tuple[str, str | None] | None:
    """Split `org/name@revision` into name and revision; None for a path.

    What lies here is a path; so is a name without a revision whose first part is a folder here, or that ends as a file.
    """
    match = HUB_NAME.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    place, slash, _ = text.partition("/")
    is_path = not slash or Path(place).is_dir() or text.endswith(FILES)
    return None if is_path and match["revision"] is None else (match["hub"], match["revision"])


def fetch_named(hub: str, revision: str | None) -> tuple[Path, HubPointer, list[str]]:
    """Download a model into the hub's own cache; return where it is, its commit, and the files that were left out.

    Raises InputError where the hub has no such model or revision, refuses it, or does not answer.
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
    """Say whether the hub does not answer, or what is wrong with what it sent."""
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    if isinstance(error, HTTPError | LocalEntryNotFoundError | ConnectionError):
        return f"{source}: there is no such path here, and the hub does not answer ({type(error).__name__})"
    return f"{source}: {next(iter(str(error).splitlines()), type(error).__name__)}"
