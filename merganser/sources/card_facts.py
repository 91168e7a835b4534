"""What a source's card, the README.md of a model or a data set, says of its licence and of what it was made of."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.limits import read_small
from merganser.sources.hub_caches import hub_cache
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


def downloaded_facts(pointer: HubPointer, repo_type: RepoType) -> dict[str, list[str]]:
    """Return what the card of a repository says, if it was downloaded with the rest; asks the hub for nothing."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        pointer.hub, CARD, cache_dir=hub_cache(), revision=pointer.revision, repo_type=repo_type
    )
    return read_facts(Path(found)) if isinstance(found, str) else {}


def joined(facts: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Put what several cards say together, each once."""
    several = list(facts)
    found = {name: list(dict.fromkeys(text for each in several for text in each.get(name, []))) for name in FACTS}
    return {name: texts for name, texts in found.items() if texts}


def _texts(value: Any) -> list[str]:
    several = value if isinstance(value, list) else [value]
    return [text for text in several if isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()]
