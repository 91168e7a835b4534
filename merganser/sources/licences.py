"""The licence of a source, and its data and base model: from its card (README.md) and licence files.

Licence files are recognised by their first lines only, since their texts vary.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.limits import read_small
from merganser.sources.guarded import hub_cache
from merganser.sources.pointers import HubPointer, RepoType

FILES = re.compile(r"(licen[cs]e|copying)([_-][\w-]+)?(\.(txt|md|rst))?", re.IGNORECASE)
LINES = 6  # in which a text says what it is, without empty ones
_GNU = r"gnu (?P<kind>affero |lesser |)general public license.*? version (?P<version>[0-9.]+)"
_CREATIVE_COMMONS = r"(?:creative commons )?attribution(?P<terms>[a-z -]*?) (?P<version>[0-9]\.[0-9])\b"
_KINDS = {"affero ": "agpl", "lesser ": "lgpl", "": "gpl"}
_PARTS = {"noncommercial": "nc", "noderivatives": "nd", "noderivs": "nd", "sharealike": "sa"}
_NAMES = {
    r"apache license,? version 2\.0": "apache-2.0",
    r"(the )?mit license": "mit",
    r"bsd 3-clause|3-clause bsd": "bsd-3-clause",
    r"bsd 2-clause|2-clause bsd": "bsd-2-clause",
    r"mozilla public license,? version 2\.0": "mpl-2.0",
    r"(creative commons legal code )?cc0 1\.0 universal": "cc0-1.0",
    r"the unlicense|this is free and unencumbered software": "unlicense",
}


def licence_files(names: Iterable[str]) -> list[str]:
    """Return the licence files among the names in a folder."""
    return sorted(name for name in names if FILES.fullmatch(name))


def facts_of_files(folder: Path) -> dict[str, list[str]]:
    """Return a folder's licence files with their sha256, and the ids of the licences that they name."""
    names = licence_files(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    files, ids = list[str](), list[str]()
    for name in names:
        try:
            text = read_small(folder / name).decode(errors="replace")
        except InputError:  # too large for a licence
            continue
        files.append(f"{name}, sha256 {sha256_of(folder / name)}")
        ids += [identifier for identifier in [named_in(text)] if identifier and identifier not in ids]
    identifier = {"license_file": files, "license_in_file": ids}
    return {name: texts for name, texts in identifier.items() if texts}


def named_in(text: str) -> str | None:
    """Return the licence's id by the first lines of a text; None if they name no known one.

    >>> named_in("Attribution-NonCommercial 4.0 International")
    'cc-by-nc-4.0'
    """
    lines = [line for line in text[: 2**12].splitlines() if line.strip()][:LINES]
    if tag := re.search(r"SPDX-License-Identifier: *([A-Za-z0-9.+-]+)\s*$", "\n".join(lines), re.MULTILINE):
        return tag[1].lower()
    first = " ".join(" ".join(lines).lower().split())
    if match := re.match(_GNU, first):
        version = match["version"].rstrip(".")
        return f"{_KINDS[match['kind']]}-{version if '.' in version else f'{version}.0'}"
    if match := re.match(_CREATIVE_COMMONS, first):
        parts = [_PARTS.get(part) for part in re.split(r"[ -]+", match["terms"]) if part]
        return None if None in parts else "-".join(["cc-by", *filter(None, parts), match["version"]])
    return next((name for pattern, name in _NAMES.items() if re.match(pattern, first)), None)


CARD = "README.md"
FACTS = ("license", "license_name", "license_link", "datasets", "base_model")  # as hubs name them
LONGEST = 500  # characters of a fact


def read_facts(card: Path) -> dict[str, list[str]]:
    """Return the facts in a card's metadata, as lists by name; empty if there is no readable card."""
    from huggingface_hub import metadata_load

    try:
        if not card.is_file():
            return {}
        read_small(card)  # refuses one that is too large
        data = metadata_load(card) or {}
    except OSError:
        raise
    except Exception:  # of malformed values, such as `!!bool x`, yaml raises whatever int(), a lookup or a match does
        return {}
    facts = {name: _texts(data.get(name)) for name in FACTS}
    return {name: texts for name, texts in facts.items() if texts}


def facts_in(folder: Path) -> dict[str, list[str]]:
    """Return the facts in a folder's card and licence files; empty for a file, whose neighbours are no input."""
    return read_facts(folder / CARD) | facts_of_files(folder)


def downloaded_facts(pointer: HubPointer, repo_type: RepoType) -> dict[str, list[str]]:
    """Return the facts in a downloaded repository's cards; for a model, its own folder's come first.

    These were downloaded with the rest, so that the hub is not asked.
    """
    from huggingface_hub.file_download import repo_folder_name

    repository = hub_cache() / repo_folder_name(repo_id=pointer.hub, repo_type=repo_type)
    snapshot = repository / "snapshots" / str(pointer.revision)
    if repo_type == "dataset":
        return read_facts(snapshot / CARD)
    place = snapshot / (pointer.path or "")
    return facts_in(place.parent if place.is_file() else place) or facts_in(snapshot)


def join_facts(facts: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Combine the facts of several cards, each once."""
    several = list(facts)
    names = dict.fromkeys(name for each in several for name in each)
    return {name: list(dict.fromkeys(text for each in several for text in each.get(name, []))) for name in names}


def _texts(value: Any) -> list[str]:
    several = value if isinstance(value, list) else [value]
    return [text for text in several if isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()]
