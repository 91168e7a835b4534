"""Where stages run: what the command line says, else a profile of `profiles.yaml`, else this machine's threads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.needs import Needs, needs_of, read_needs
from flows.runners import CLUSTERS, RUNNERS
from merganser.errors import InputError

if TYPE_CHECKING:
    from dvc.stage import Stage

PROFILES = "profiles.yaml"


@dataclass(frozen=True)
class Place:
    """A runner by name, a cluster's address if there is one, how many threads at once, and more `meta` by stage."""

    runner: str = "threads"
    address: str | None = None
    workers: int | None = None
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def needs(self, stage: "Stage") -> Needs:
        """Return what a stage asks for here; raises InputError for what cannot be understood."""
        return needs_of(stage, next((self.stages[name] for name in _names(stage) if name in self.stages), None))


def choose_place(root: Path, profile: str | None, **said: Any) -> Place:
    """Return the profile's place with what was `said` on the command line in place of it (None was not said).

    Raises InputError for a profile that is not there or makes no sense, and for an address that no cluster has.
    """
    place = read_profile(root / PROFILES, profile) if profile else Place()
    place = replace(place, **{name: value for name, value in said.items() if value is not None})
    if place.runner not in RUNNERS:
        raise InputError(f"no runner {place.runner!r}; there are {', '.join(RUNNERS)}")
    if place.address and place.runner not in CLUSTERS:
        raise InputError(f"--address is for --runner {' and '.join(CLUSTERS)}; {place.runner} run on this machine")
    return place


def read_profile(path: Path, name: str) -> Place:
    """Return the place that a profile of the file describes; raises InputError."""
    import yaml

    try:
        profiles = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"--profile {name}: there is no {path}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(profiles, dict) or name not in profiles:
        known = ", ".join(map(str, profiles)) if isinstance(profiles, dict) else "none"
        raise InputError(f"{path}: no profile {name!r}; there are {known}")
    return _place(profiles[name], f"{path}: {name}")


def check_stages(place: Place, stages: Iterable["Stage"]) -> None:
    """Raise InputError where a profile speaks of a stage that is not there."""
    known = {name for stage in stages for name in _names(stage)} if place.stages else set()
    for name in place.stages:
        if name not in known:
            raise InputError(f"{PROFILES}: stages.{name}: there is no such stage in dvc.yaml")


def _place(entry: Any, where: str) -> Place:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: should be a map such as {{runner: threads}}, got {entry!r}")
    kinds: dict[str, type] = {"runner": str, "address": str, "workers": int, "stages": dict}
    for key, value in entry.items():
        if key not in kinds:
            raise InputError(f"{where}.{key}: unknown; there are {', '.join(each.name for each in fields(Place))}")
        if type(value) is not kinds[key] or value == 0:
            raise InputError(f"{where}.{key}: should be a {kinds[key].__name__}, got {value!r}")
    for name, meta in entry.get("stages", {}).items():
        if not isinstance(meta, dict):
            raise InputError(f"{where}.stages.{name}: should be a map such as {{resources: {{gpus: 1}}}}, got {meta!r}")
        read_needs(meta, f"{where}.stages.{name}")
    return Place(**entry)


def _names(stage: "Stage") -> tuple[str, str]:
    """Return a stage's name, and that which it shares with others of its foreach or matrix."""
    return stage.addressing, stage.addressing.partition("@")[0]
