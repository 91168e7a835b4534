"""The devices that params.yaml declares: reruns on another kind, and how far scores may move there."""

from pathlib import Path
from typing import Any

from merganser.limits import read_yaml

DEFAULT = "cpu"
SECTIONS = ("merge", "evaluation")
# The stages that compute on a declared device, and the section of params.yaml that declares it.
ON_DEVICE = {"merge": "merge", "evaluate": "evaluation", "study_tasks": "evaluation", "study_rank": "evaluation"}
EXAMPLES = 2  # that may be scored otherwise: where two logits are equal but for rounding
RELATIVE = 1e-4


def declared_devices(params: Path) -> dict[str, str]:
    """Return the device of each section of a params.yaml; raise InputError if it cannot be read."""
    content = read_yaml(params)
    sections = {name: content.get(name) if isinstance(content, dict) else None for name in SECTIONS}
    return {
        name: (each.get("device") if isinstance(each, dict) else None) or DEFAULT for name, each in sections.items()
    }


def changes_for(device: str, params: Path) -> dict[str, tuple[str, str]]:
    """Return the parameters that another device changes: by name, what is declared and what is wanted."""
    declared = declared_devices(params)
    return {f"{name}.device": (each, device) for name, each in declared.items() if each != device}


def score_tolerance(content: Any, place: tuple[str, ...]) -> float | None:
    """Return how far a number of a metric file may move on another device: two examples, or 1e-4 of it if that is more.

    None for what is not compared: the device's name, and the numbers of a file without `count`: the report's means
    follow from the scores.

    >>> score_tolerance({"value": 0.5, "count": 100, "device": "cuda"}, ("value",))
    0.02
    """
    count = content.get("count") if isinstance(content, dict) else None
    if not isinstance(count, int) or place == ("device",):
        return None
    value = content.get(".".join(place))
    if place == ("count",) or not isinstance(value, int | float):
        return 0.0
    return max(EXAMPLES / count, RELATIVE * abs(value))
