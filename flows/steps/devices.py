"""Devices in params.yaml: whether stages get them, reruns on another kind, and how much scores may then differ."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.stages import kind_of
from merganser.errors import InputError
from merganser.limits import read_yaml
from merganser.tasks.stages import STAGES

DEFAULT = "cpu"
EXAMPLES = 2  # that may be scored otherwise: where two logits are equal but for rounding
RELATIVE = 1e-4


@dataclass(frozen=True)
class Devices:
    """The devices in a params.yaml, by place: a section such as merge, or an entry such as learned.NAME."""

    declared: Mapping[str, str]
    tasks: Collection[str]

    def place(self, stage: str) -> str | None:
        """Return the place of a stage's device; None for a stage that always runs on the CPU.

        >>> Devices({"statistics.a": "cpu", "statistics.a-b": "cuda"}, ["b", "c"]).place("statistics@a-b-c")
        'statistics.a-b'
        """
        kind, _, name = stage.partition("@")
        about = STAGES.get(kind)
        if about is None or about.device is None:
            return None
        if not about.by_entry:
            return about.device
        for place in self.declared:
            section, _, entry = place.partition(".")
            if section == about.device and name in (entry, *(f"{entry}-{task}" for task in self.tasks)):
                return place
        return None

    def of(self, stage: str) -> str:
        """Return the device that a stage computes on."""
        place = self.place(stage)
        return self.declared[place] if place else DEFAULT


def devices_of(content: Any) -> Devices:
    """Find the devices in the content of a params.yaml."""
    sections = content if isinstance(content, dict) else {}
    return Devices(dict(_declared(sections)), list(_mapping(sections.get("tasks"))))


def declared_devices(params: Path) -> Devices:
    """Find the devices in a params.yaml; raise InputError if it cannot be read."""
    return devices_of(read_yaml(params))


def refuse_without_gpu(params: Path, gpus: Mapping[str, int]) -> None:
    """Raise InputError for a stage declared for a GPU that asks for none; `gpus`: how many each stage asks for."""
    devices = declared_devices(params)
    for stage, count in gpus.items():
        if devices.of(stage) == "cuda" and not count:
            kind, place = kind_of(stage), f"{devices.place(stage)}.device"
            line = f"{kind}: {{resources: {{gpus: 1}}}}"
            remedy = f"run by a --profile that has `{line}` among its stages in profiles.yaml, or set it to cpu"
            raise InputError(f"{params}: {place} is cuda, and the stage {stage} is given no GPU; {remedy}")


def changes_for(device: str, params: Path) -> dict[str, tuple[str, str]]:
    """Return the parameters that a rerun on another device changes: by name, the declared and the wanted device."""
    declared = declared_devices(params).declared
    return {f"{place}.device": (each, device) for place, each in declared.items() if each != device}


def _declared(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for about in dict.fromkeys(STAGES.values()):
        section = _mapping(sections.get(about.device)) if about.device else {}
        if about.by_entry:
            for entry, values in section.items():
                yield f"{about.device}.{entry}", _mapping(values).get("device") or DEFAULT
        elif about.device:
            yield about.device, section.get("device") or DEFAULT


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def score_tolerance(content: Any, place: tuple[str, ...]) -> float | None:
    """Return how far a number of a metric file may differ on another device: two examples, or 1e-4 of it if more.

    None for values that are not compared: the device's name, and means, which follow from the scores and have no
    `count`.

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
