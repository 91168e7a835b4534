"""Where a model came from, as far as its files say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from merganser.checkpoints.reading import ADAPTER_CONFIG, DESCRIPTION

Kind = Literal["local", "hub", "open_clip", "package", "mean"]


@dataclass(frozen=True)
class Origin:
    """A source's name, the sha256 of each file that its weights are read from, and the licences that its card gives.

    No revision: the same bytes at another revision are the same model, and nothing need be merged anew.
    """

    name: str
    kind: Kind = "local"
    files: Mapping[str, str] = field(default_factory=dict)
    licences: Sequence[str] = ()  # ids as hubs have them, or the name that stands beside the id `other`


def origin_of(folder: Path) -> Origin:
    """Return the origin of a fetched model, as its `source.json` describes it."""
    description = json.loads((folder / DESCRIPTION).read_text())
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
    ids, own = description.get("license", []), description.get("license_name", [])
    licences = [*(own if own and ids == ["other"] else ids)]
    return Origin(names.get(kind) or description["source"], kind, files, licences)
