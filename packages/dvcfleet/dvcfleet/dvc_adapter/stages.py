"""DVC's stages: their graph and order, those that options ask for, their commands, and their entries in dvc.lock."""

import fnmatch
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import dpath

from dvcfleet.dvc_adapter.internals import otherwise
from dvcfleet.dvc_adapter.objects import is_near_output
from dvcfleet.dvc_adapter.protocols import Item, Output, ParamsDependency, PipelineStage, Repo, Stage
from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.options import EVERYTHING, Options
from dvcfleet.process_settings import without_own

if TYPE_CHECKING:
    from networkx import DiGraph


# The key of `meta` that is the engine's, and those below it for stages and for outputs.
_OWN_META = "dvcfleet"
_STAGE_KEYS = ("resources", "retries", "timeout", "place", "restore", "exclusive")
_OUTPUT_KEYS = ("metric", "varies")


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
    """Return the part of a stage's name before the @, the name of its foreach or matrix."""
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


def variable_files(path: str) -> list[str]:
    """Return the files in the `vars` of a dvc.yaml, which DVC needs to read it."""
    from dvc.utils.serialize import load_yaml

    named = [each.partition(":")[0] for each in load_yaml(path).get("vars") or () if isinstance(each, str)]
    return [os.path.join(os.path.dirname(path), name) for name in named]


def own_meta(stage: Stage) -> tuple[Mapping[str, Any], str]:
    """Return the engine's part of a stage's `meta` and its place; raise UserError for no map or an unknown key."""
    return _own_meta(stage.meta, f"stage {stage.addressing}", _STAGE_KEYS)


def refuse_cached_elsewhere(stage: Stage) -> None:
    """Raise UserError for a cached output outside the repository, which DVC refuses after the command."""
    for out in stage.outs:
        if out.use_cache and not out.is_in_repo:
            cure = "move it into the repository, or declare it with `cache: false`"
            raise UserError(f"{stage.addressing}: DVC caches no output outside the repository, such as {out}; {cure}")


def may_restore(stage: Stage) -> bool:
    """Tell whether the stage may be restored from the run cache: not with `restore: false`."""
    meta, where = own_meta(stage)
    return _flag(meta, "restore", True, where)


def exclusive(stage: Stage) -> str | bool | None:
    """Return the stage's group, of which one runs at a time; False: it has none, None: its `meta` does not say."""
    meta, where = own_meta(stage)
    value = meta.get("exclusive")
    if value is None or value is False or (isinstance(value, str) and value.strip()):
        return value
    raise UserError(f"{where}.exclusive should be a name, the same for all that may not run together, got {value!r}")


def varies(out: Output) -> bool | tuple[str, ...]:
    """Tell whether an output is declared to vary from run to run: `varies: true`, or the keys of its JSON object."""
    meta, where = _own_meta(out.annot.meta, f"output {out}", _OUTPUT_KEYS)
    value = meta.get("varies", False)
    if isinstance(value, bool):
        return value
    if not (value and isinstance(value, list) and all(isinstance(key, str) for key in value)):
        raise UserError(f"{where}.varies should be true, false or a list of keys, got {value!r}")
    return tuple(value)


def is_metric(out: Output) -> bool:
    """Tell whether an output is a metric: under `metrics`, or by `metric: true`, which DVC's tables leave out."""
    meta, where = _own_meta(out.annot.meta, f"output {out}", _OUTPUT_KEYS)
    return bool(out.metric) or _flag(meta, "metric", False, where)


def varying(stage: Stage) -> dict[str, bool | list[str]]:
    """Return the outputs declared to vary from run to run, by path in dvc.yaml: completely, or in some keys."""
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
    """Return the environment of commands: this process's, without the engine's and pyenv's own variables."""
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


_DVC_YAML = "dvc.yaml"


def stage_graph(repo: Repo, options: Options = EVERYTHING) -> tuple["DiGraph", list[Stage]]:
    """Return the graph that orders the stages (edges point upstream) and the requested stages, in `dvc repro`'s order.

    Raises UserError for a target that is not a stage and no output, and for targets that no stage matches.
    """
    from dvc.repo.reproduce import get_active_graph, plan_repro

    graph = get_active_graph(repo.index.graph)
    asked = [] if options.all_pipelines else _asked(repo, options)
    if options.single_item and not (options.pipeline or options.all_pipelines):
        return _one_after_the_other(repo.index.graph, asked), asked
    some = asked if len(asked) < len(graph) else None
    stages = plan_repro(graph, some, pipeline=options.pipeline, downstream=options.downstream and bool(some))
    return graph, _in_order(graph, stages) if some else stages


def _asked(repo: Repo, options: Options) -> list[Stage]:
    """Return the stages of the targets; without targets all of dvc.yaml."""
    from dvc.repo.reproduce import collect_stages

    if not options.targets:
        path = repo.fs.abspath(_DVC_YAML)
        # Reuse what the index has loaded.
        here = [stage for stage in repo.index.stages if stage.path == path]
        return here or list(collect_stages(repo, [_DVC_YAML]))
    find = _matching if options.glob else _named
    known = find(repo)
    asked: dict[Stage, None] = {}
    for given in options.targets:
        target = given if known(given) else called_from_here(repo, options.folder, given)
        is_folder = options.recursive and repo.fs.isdir(target)
        stages = None if is_folder else known(target)
        asked |= dict.fromkeys(_collected(repo, target, options) if stages is None else stages)
    if not asked:
        raise UserError(f"{', '.join(options.targets)}: no stage matches; `dvc stage list` names all stages")
    return list(asked)


def called_from_here(repo: Repo, folder: Path, target: str) -> str:
    """Return a target as it is called from the current folder: a path starts in `folder`, and a name stays a name."""
    file, colon, name = target.partition(":")
    path = os.path.relpath(folder / file)
    is_path = os.path.lexists(path) or is_near_output(repo, os.path.abspath(path))
    return f"{path}{colon}{name}" if file and is_path else target


def _named(repo: Repo) -> Callable[[str], Sequence[Stage] | None]:
    """Return a function that finds stages, or all of a template, by name without rereading dvc.yaml."""
    names: dict[str, list[Stage]] = {}
    for stage in repo.index.stages:
        names[stage.addressing] = [stage]
        if in_dvc_yaml(stage) and (group := stage.raw_data.generated_from):
            names.setdefault(stage.addressing.removesuffix(stage.name) + group, []).append(stage)
    return names.get


def _matching(repo: Repo) -> Callable[[str], Sequence[Stage] | None]:
    """Return a function that finds stages by a pattern of their names, as DVC does."""
    known = defaultdict(list)
    for stage in repo.index.stages:
        if in_dvc_yaml(stage):
            known[stage.path].append(stage)

    def find(target: str) -> Sequence[Stage] | None:
        path, _, pattern = target.rpartition(":")
        stages = known.get(repo.fs.abspath(path or _DVC_YAML))
        if stages is None:
            return None
        group = [stage for stage in stages if pattern and stage.raw_data.generated_from == pattern]
        return group or [stage for stage in stages if fnmatch.fnmatch(stage.name, pattern or "*")]

    return find


def _collected(repo: Repo, target: str, options: Options) -> list[Stage]:
    """Return the stages of a target by DVC's own search, including the stage with the target as, or in, an output."""
    from dvc.repo.reproduce import collect_stages
    from dvc.stage.exceptions import StageNotFound

    try:
        return list(collect_stages(repo, [target], recursive=options.recursive, glob=options.glob))
    except StageNotFound as error:
        if out := repo.index.outs_trie.longest_prefix(repo.fs.parts(repo.fs.abspath(target))):
            return [out.value.stage]
        names = [stage.addressing for stage in repo.index.stages]
        raise UserError(f"{error}{did_you_mean(target, names)}; `dvc stage list` names all stages") from error


def _in_order(graph: "DiGraph", stages: Sequence[Stage]) -> list[Stage]:
    """Sort some stages by the order of a graph's nodes, upstream ones first.

    DVC does the same, except for fewer than half of the stages: then it uses a set's order, which differs between
    processes.
    """
    from networkx import DiGraph, dfs_postorder_nodes

    wanted, ordered = set(stages), DiGraph()
    ordered.add_nodes_from(stage for stage in graph if stage in wanted)
    ordered.add_edges_from((stage, need) for stage in ordered for need in graph.successors(stage) if need in wanted)
    return list(dfs_postorder_nodes(ordered))


def _one_after_the_other(graph: "DiGraph", asked: Sequence[Stage]) -> "DiGraph":
    """Return a graph of these stages in which the later of two stages with a common file needs the earlier."""
    from networkx import DiGraph

    ordered = DiGraph()
    for stage in asked:
        related = {*graph.successors(stage), *graph.predecessors(stage)}
        earlier = [other for other in related if other in ordered]
        ordered.add_node(stage)
        ordered.add_edges_from((stage, other) for other in earlier)
    return ordered
