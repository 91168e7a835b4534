"""Choose where stages run: by the command line, else a profile of `profiles.yaml`, else in threads on this machine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.lock_entries import parse_strictly
from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources, read_resources, resources_of
from dvcfleet.runners import load_runner, own_names

PROFILES, PROJECT_FILE = "profiles.yaml", "dvc.yaml"
_META = ("resources", "retries", "timeout")  # what a profile may say of a stage


@dataclass(frozen=True)
class Placement:
    """A runner by name, a cluster's address or None, the number of threads, and additional `meta` by stage."""

    runner: str = "threads"
    address: str | None = None
    workers: int | None = None
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def resources(self, stage: Stage) -> Resources:
        """Return a stage's requested resources; raise UserError for an invalid value."""
        return resources_of(stage, next((self.stages[name] for name in _names(stage) if name in self.stages), None))


def choose_placement(root: Path, profile: str | None, **options: Any) -> Placement:
    """Return the profile's placement, overridden by the command line's `options` (None: not given).

    Raises UserError if the profile does not exist or is invalid, for a runner that does not exist, and for an address
    without a cluster.
    """
    place = read_profile(root / PROFILES, profile) if profile else Placement()
    place = replace(place, **{name: value for name, value in options.items() if value is not None})
    if not load_runner(place.runner).TAKES_ADDRESS and place.address:
        clusters = " and ".join(name for name in own_names() if load_runner(name).TAKES_ADDRESS)
        raise UserError(f"--address is for --runner {clusters}; --runner {place.runner} takes none")
    return place


def read_profile(path: Path, name: str) -> Placement:
    """Return the placement that a profile of the file describes; raises UserError."""
    if not path.is_file():
        raise UserError(f"--profile {name}: there is no file {path}")
    try:
        profiles = parse_strictly(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(profiles, dict) or name not in profiles:
        known = (", ".join(map(str, profiles)) if isinstance(profiles, dict) else "") or "none"
        raise UserError(f"{path}: no profile {name!r}; there are {known}")
    return _place(profiles[name], f"{path}: {name}")


def check_profile_stages(place: Placement, stages: Sequence[Stage], root: Path) -> None:
    """Raise UserError if a profile names a stage that does not exist; one whose foreach or matrix is empty does."""
    known = {name for stage in stages for name in _names(stage)} if place.stages else set()
    missing = [name for name in place.stages if name not in known]
    declared = set(_declared(stages, root)) if missing else set()
    for name in missing:
        if name not in declared:
            raise UserError(f"{PROFILES}: stages.{name}: there is no such stage in dvc.yaml")


def _declared(stages: Sequence[Stage], root: Path) -> Iterator[str]:
    """Give the names of all stages in the files that stages are from, and in the root's, as they stand there."""
    import yaml

    files = {str(root / PROJECT_FILE): ""}
    files |= {stage.path: stage.addressing.rpartition(":")[0] for stage in stages if stage.path.endswith(PROJECT_FILE)}
    for path, place in files.items():
        with suppress(FileNotFoundError):
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
            yield from (f"{place}:{name}" if place else name for name in (content or {}).get("stages") or {})


def _place(entry: Any, where: str) -> Placement:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: should be a map such as {{runner: threads}}, got {entry!r}")
    kinds: dict[str, type] = {"runner": str, "address": str, "workers": int, "stages": dict}
    for key, value in entry.items():
        if key not in kinds:
            raise UserError(f"{where}.{key}: unknown; there are {', '.join(each.name for each in fields(Placement))}")
        if type(value) is not kinds[key] or (isinstance(value, int) and value < 1):
            raise UserError(f"{where}.{key}: should be a {kinds[key].__name__}, got {value!r}")
    for name, meta in entry.get("stages", {}).items():
        if not isinstance(meta, dict):
            raise UserError(f"{where}.stages.{name}: should be a map such as {{resources: {{gpus: 1}}}}, got {meta!r}")
        for key in meta:
            if key not in _META:
                raise UserError(f"{where}.stages.{name}.{key}: unknown; there are {', '.join(_META)}")
        read_resources(meta, f"{where}.stages.{name}")
    return Placement(**entry)


def _names(stage: Stage) -> tuple[str, str]:
    """Return a stage's name, and the name of its foreach or matrix."""
    return stage.addressing, kind_of(stage.addressing)
