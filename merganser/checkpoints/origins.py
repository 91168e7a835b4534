"""Where a model came from, as far as its files say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from merganser.checkpoints.reading import ADAPTER_CONFIG, DESCRIPTION

Kind = Literal["local", "hub", "open_clip", "package", "mean"]


@dataclass(frozen=True)
class ModelOrigin:
    """A source's name, the sha256 of each file that its weights are read from, and what its card says of it.

    `licences`: ids as hubs have them, or the name that stands beside the id `other`; where the card gives none, what
    the first lines of a licence file beside it name, or that file. `datasets`: what it was trained on.

    No revision: the same bytes at another revision are the same model, and nothing need be merged anew.
    """

    name: str
    kind: Kind = "local"
    files: Mapping[str, str] = field(default_factory=dict)
    licences: Sequence[str] = ()
    datasets: Sequence[str] = ()


def model_origin(folder: Path) -> ModelOrigin:
    """Return the origin of a fetched model, as its `source.json` describes it."""
    return described_origin(json.loads((folder / DESCRIPTION).read_text()))


def described_origin(description: Mapping[str, Any]) -> ModelOrigin:
    """Return the origin of a model by what its `source.json` says, or will say."""
    kind = description["kind"]
    names = {
        "hub": description.get("hub"),
        "open_clip": f"{description.get('open_clip')}, {description.get('pretrained')}",
        "package": f"{description.get('package')} {description.get('version')}",
        "mean": f"the mean of {', '.join(description.get('mean_of', []))}",
    }
    files = {
        name: about["sha256"]
        for name, about in description["files"].items()
        if name.endswith(".safetensors") or name == ADAPTER_CONFIG
    }
    licences, datasets = licences_in(description), list(description.get("datasets", []))
    return ModelOrigin(names.get(kind) or description["source"], kind, files, licences, datasets)


def licences_in(facts: Mapping[str, Any]) -> list[str]:
    """Return the licences that facts of a source give: its card's, else those of the licence files beside it."""
    ids, own = facts.get("license", []), facts.get("license_name", [])
    if not ids or (ids == ["other"] and not own):
        return list(facts.get("license_in_file") or facts.get("license_file") or ids)
    return list(own if ids == ["other"] else ids)
