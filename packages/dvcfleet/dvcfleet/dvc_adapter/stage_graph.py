"""The stages that a run's options ask for, and their graph."""

import fnmatch
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dvcfleet.dvc_adapter.listings import is_near_output
from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml
from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.options import EVERYTHING, Options

if TYPE_CHECKING:
    from networkx import DiGraph


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
    """Return the stages that the targets name: all of dvc.yaml if there are none."""
    from dvc.repo.reproduce import collect_stages

    if not options.targets:
        path = repo.fs.abspath(_DVC_YAML)
        # Reuse what the index has loaded.
        here = [stage for stage in repo.index.stages if stage.path == path]
        return here or list(collect_stages(repo, [_DVC_YAML]))
    find = _matching if options.glob else _named
    known = find(repo)
    found: dict[Stage, None] = {}
    for given in options.targets:
        target = given if known(given) else called_from_here(repo, options.folder, given)
        is_folder = options.recursive and repo.fs.isdir(target)
        stages = None if is_folder else known(target)
        found |= dict.fromkeys(_collected(repo, target, options) if stages is None else stages)
    if not found:
        raise UserError(f"{', '.join(options.targets)}: no stage matches; `dvc stage list` names all stages")
    return list(found)


def called_from_here(repo: Repo, folder: Path, target: str) -> str:
    """Return a target as it is called from the current folder: a path starts in `folder`, and a name stays a name."""
    file, colon, name = target.partition(":")
    path = os.path.relpath(folder / file)
    is_path = os.path.lexists(path) or is_near_output(repo, os.path.abspath(path))
    return f"{path}{colon}{name}" if file and is_path else target


def _named(repo: Repo) -> Callable[[str], Sequence[Stage] | None]:
    """Return how a name of a stage, or of all stages of a template, is found without DVC's reading dvc.yaml again."""
    names: dict[str, list[Stage]] = {}
    for stage in repo.index.stages:
        names[stage.addressing] = [stage]
        if in_dvc_yaml(stage) and (group := stage.raw_data.generated_from):
            names.setdefault(stage.addressing.removesuffix(stage.name) + group, []).append(stage)
    return names.get


def _matching(repo: Repo) -> Callable[[str], Sequence[Stage] | None]:
    """Return how stages are found by a pattern of their names, as DVC does it."""
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
    """Return the stages of a target by DVC's own search; also that of which the target is an output, or in one."""
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
    """Put some stages of a graph in the order of its nodes, upstream ones first.

    So does DVC, but where they are less than half: then its order is that of a set, another one in each process.
    """
    from networkx import DiGraph, dfs_postorder_nodes

    wanted, ordered = set(stages), DiGraph()
    ordered.add_nodes_from(stage for stage in graph if stage in wanted)
    ordered.add_edges_from((stage, need) for stage in ordered for need in graph.successors(stage) if need in wanted)
    return list(dfs_postorder_nodes(ordered))


def _one_after_the_other(graph: "DiGraph", asked: Sequence[Stage]) -> "DiGraph":
    """Return a graph of these stages in which, of two that have a file in common, the later needs the earlier."""
    from networkx import DiGraph

    ordered = DiGraph()
    for stage in asked:
        related = {*graph.successors(stage), *graph.predecessors(stage)}
        earlier = [other for other in related if other in ordered]
        ordered.add_node(stage)
        ordered.add_edges_from((stage, other) for other in earlier)
    return ordered
