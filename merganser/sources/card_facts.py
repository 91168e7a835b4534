"""What a source says of its licence and of what it was made of: its card (README.md) and its licence files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.limits import read_small
from merganser.sources.hub_caches import hub_cache
from merganser.sources.licence_files import facts_of_files
from merganser.sources.pointers import HubPointer, RepoType

CARD = "README.md"
FACTS = ("license", "license_name", "license_link", "datasets", "base_model")  # as hubs name them
LONGEST = 500  # characters of a fact


def read_facts(card: Path) -> dict[str, list[str]]:
    """Return what the metadata of a card says, as lists by name; nothing where there is no card that can be read."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        if not card.is_file():
            return {}
        read_small(card)  # refuses one that is too large
        data = metadata_load(card) or {}
    except (InputError, ValueError, TypeError, YAMLError, RecursionError):
        return {}
    found = {name: _texts(data.get(name)) for name in FACTS}
    return {name: texts for name, texts in found.items() if texts}


def facts_in(folder: Path) -> dict[str, list[str]]:
    """Return what the card and licence files in a folder say; nothing of a file: what lies beside it is no input."""
    return read_facts(folder / CARD) | facts_of_files(folder)


def downloaded_facts(pointer: HubPointer, repo_type: RepoType) -> dict[str, list[str]]:
    """Return what the card of a data set's repository says, or what a model's does, its own folder's before the rest's.

    That is what was downloaded with the rest: the hub is asked for nothing.
    """
    from huggingface_hub.file_download import repo_folder_name

    repository = hub_cache() / repo_folder_name(repo_id=pointer.hub, repo_type=repo_type)
    snapshot = repository / "snapshots" / str(pointer.revision)
    if repo_type == "dataset":
        return read_facts(snapshot / CARD)
    place = snapshot / (pointer.path or "")
    return facts_in(place.parent if place.is_file() else place) or facts_in(snapshot)


def join_facts(facts: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Put what several cards say together, each once."""
    several = list(facts)
    names = dict.fromkeys(name for each in several for name in each)
    return {name: list(dict.fromkeys(text for each in several for text in each.get(name, []))) for name in names}


def _texts(value: Any) -> list[str]:
    several = value if isinstance(value, list) else [value]
    return [text for text in several if isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()]
