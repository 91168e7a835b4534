"""DVC's stages: their graph and order, their commands, and their entries in dvc.lock."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import dpath

from dvcfleet.dvc_adapter.internals import otherwise
from dvcfleet.dvc_adapter.protocols import Item, Output, ParamsDependency, PipelineStage, Repo, Stage
from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.own_variables import without_own

# The key of `meta` that is the engine's, and those below it for stages and for outputs.
_OWN_META = "dvcfleet"
_STAGE_KEYS = ("resources", "retries", "timeout", "place", "restore", "exclusive")
_OUTPUT_KEYS = ("varies",)


def load_stage(repo: Repo, dvc_yaml: str, name: str) -> PipelineStage | None:
    """Return one stage of a dvc.yaml; None if there is no such stage or file."""
    from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound

    try:
        return repo.stage.load_one(dvc_yaml, name)
    except (StageNotFound, StageFileDoesNotExistError):
        return None


def in_dvc_yaml(stage: Stage) -> TypeGuard[PipelineStage]:
    """Tell whether a stage is one of a dvc.yaml, with a name and an entry in dvc.lock, and not that of a .dvc file."""
    return hasattr(stage, "name")


def kind_of(name: str) -> str:
    """Return what stands before the @ of a stage's name, that of its foreach or matrix."""
    return name.partition("@")[0]


def is_params(dep: Item) -> TypeGuard[ParamsDependency]:
    """Tell whether a dependency is on parameters, not on a file as a whole."""
    from dvc.dependency import ParamsDependency

    return isinstance(dep, ParamsDependency)


def parse_params(path: str) -> Any:
    """Parse a parameters file as DVC does."""
    from dvc.fs import localfs
    from dvc.utils.serialize import LOADERS

    return LOADERS[localfs.suffix(path).lower()](path, fs=localfs)


def set_params(path: Path, params: Mapping[str, Any]) -> None:
    """Set parameters of a YAML file by their dotted names."""
    from dvc.utils.serialize import dumps_yaml, load_yaml

    content = load_yaml(path)
    for name, value in params.items():
        dpath.new(content, name, value, separator=".")
    path.write_text(dumps_yaml(content), encoding="utf-8")


def own_meta(stage: Stage) -> tuple[Mapping[str, Any], str]:
    """Return what the stage's `meta` says to the engine, and where it does; all else in `meta` is the user's.

    Raises UserError if that is not a map, or for a key that the engine does not know.
    """
    return _own_meta(stage.meta, f"stage {stage.addressing}", _STAGE_KEYS)


def refuse_cached_elsewhere(stage: Stage) -> None:
    """Raise UserError for an output outside the repository that is to be cached: DVC refuses it after the command."""
    for out in stage.outs:
        if out.use_cache and not out.is_in_repo:
            cure = "move it into the repository, or declare it with `cache: false`"
            raise UserError(f"{stage.addressing}: DVC caches no output outside the repository, such as {out}; {cure}")


def may_restore(stage: Stage) -> bool:
    """Tell whether the stage may be restored from the run cache: not with `restore: false`."""
    meta, where = own_meta(stage)
    return _flag(meta, "restore", True, where)


def exclusive(stage: Stage) -> str | bool | None:
    """Return the name that the stage's `meta` gives to stages of which only one runs at a time.

    False: it may run beside any other. None: `meta` does not say.
    """
    meta, where = own_meta(stage)
    value = meta.get("exclusive")
    if value is None or value is False or (isinstance(value, str) and value.strip()):
        return value
    raise UserError(f"{where}.exclusive should be a name, the same for all that may not run together, got {value!r}")


def varies(out: Output) -> bool | tuple[str, ...]:
    """Tell whether an output is said to differ from run to run: `varies: true`, or by these keys of its JSON object."""
    meta, where = _own_meta(out.annot.meta, f"output {out}", _OUTPUT_KEYS)
    value = meta.get("varies", False)
    if isinstance(value, bool):
        return value
    if not (value and isinstance(value, list) and all(isinstance(key, str) for key in value)):
        raise UserError(f"{where}.varies should be true, false or a list of keys, got {value!r}")
    return tuple(value)


def varying(stage: Stage) -> dict[str, bool | list[str]]:
    """Return what is said to differ from run to run, by the outputs' paths as dvc.yaml has them: all, or some keys."""
    said = {out.def_path: varies(out) for out in stage.outs}
    return {path: list(value) if isinstance(value, tuple) else value for path, value in said.items() if value}


def _own_meta(meta: Any, owner: str, known: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    where = f"{owner}: meta.{_OWN_META}"
    own = meta.get(_OWN_META, {}) if isinstance(meta, Mapping) else {}
    if not isinstance(own, Mapping):
        raise UserError(f"{where} should be a map such as {{{known[0]}: ...}}, got {own!r}")
    for key in own:
        if key not in known:
            raise UserError(f"{where}.{key}: unknown; there are {', '.join(known)}{did_you_mean(str(key), known)}")
    return own, where


def _flag(meta: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = meta.get(key, default)
    if not isinstance(value, bool):
        raise UserError(f"{where}.{key} should be true or false, got {value!r}")
    return value


@otherwise("starting a shell, which now reads its settings,", lambda shell, line: [shell, "-c", line])
def shell_command(shell: str, line: str) -> list[str]:
    """Return a shell's argv for one command line; for shells it knows, DVC skips the user's startup files."""
    from dvc.stage.run import _make_cmd

    return list(_make_cmd(shell, line))


@otherwise("finding a python under pyenv", lambda: without_own(os.environ))
def command_environment() -> dict[str, str]:
    """Return the environment for commands: this process's, without what the engine and pyenv set for their own."""
    from dvc.utils import fix_env

    return without_own(fix_env(None))


def lock_entry_of(stage: Stage) -> dict[str, Any]:
    """Return the dvc.lock entry of a stage in its present state."""
    from dvc.stage.serialize import to_single_stage_lockfile

    return dict(to_single_stage_lockfile(stage))


def fill_from_lock(stage: PipelineStage, entry: Mapping[str, Any]) -> None:
    """Set a stage's hashes from an entry of dvc.lock, as if it had just run."""
    from dvc.stage.loader import StageLoader

    StageLoader.fill_from_lock(stage, entry)
    stage.cmd_changed = False


def locked_stage(repo: Repo, dvc_yaml: str, entry: Mapping[str, Any], folder: str) -> Stage:
    """Return a stage made from its entry in dvc.lock alone; `folder` is its working folder."""
    from dvc.stage import PipelineStage, create_stage
    from dvc.stage.loader import StageLoader

    outs = [out["path"] for out in entry.get("outs", [])]
    stage = create_stage(PipelineStage, repo=repo, path=dvc_yaml, cmd=entry["cmd"], wdir=folder, outs=outs)
    StageLoader.fill_from_lock(stage, entry)
    return stage
