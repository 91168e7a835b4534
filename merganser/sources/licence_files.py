"""What the licence files beside a model name: by their first lines only, since texts are changed at will."""

import re
from collections.abc import Iterable
from pathlib import Path

from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.limits import read_small

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
    """Pick the files that hold a licence from the names in a folder."""
    return sorted(name for name in names if FILES.fullmatch(name))


def facts_of_files(folder: Path) -> dict[str, list[str]]:
    """Return the licence files of a folder with their sha256, and the ids of licences that these name in the clear."""
    names = licence_files(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    files, ids = list[str](), list[str]()
    for name in names:
        try:
            text = read_small(folder / name).decode(errors="replace")
        except InputError:  # too large for a licence
            continue
        files.append(f"{name}, sha256 {sha256_of(folder / name)}")
        ids += [found for found in [named_in(text)] if found and found not in ids]
    found = {"license_file": files, "license_in_file": ids}
    return {name: texts for name, texts in found.items() if texts}


def named_in(text: str) -> str | None:
    """Return the id of the licence that the first lines of a text name; None where they name none that is known.

    >>> named_in("Attribution-NonCommercial 4.0 International")
    'cc-by-nc-4.0'
    """
    lines = [line for line in text[: 2**12].splitlines() if line.strip()][:LINES]
    if tag := re.search(r"SPDX-License-Identifier: *([A-Za-z0-9.+-]+)\s*$", "\n".join(lines), re.MULTILINE):
        return tag[1].lower()
    first = " ".join(" ".join(lines).lower().split())
    if found := re.match(_GNU, first):
        version = found["version"].rstrip(".")
        return f"{_KINDS[found['kind']]}-{version if '.' in version else f'{version}.0'}"
    if found := re.match(_CREATIVE_COMMONS, first):
        parts = [_PARTS.get(part) for part in re.split(r"[ -]+", found["terms"]) if part]
        return None if None in parts else "-".join(["cc-by", *filter(None, parts), found["version"]])
    return next((name for pattern, name in _NAMES.items() if re.match(pattern, first)), None)
