"""Merge the tasks' models by one entry of `methods`."""

import platform
import resource
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.companions import copy_companions
from merganser.checkpoints.origins import origin_of, read_origin
from merganser.checkpoints.output import AS_THE_BASE, Output
from merganser.checkpoints.reading import Checkpoint, open_for_merging
from merganser.config.loading import load_params
from merganser.config.params import Entry, Params, declared
from merganser.inputs.deltas import open_deltas
from merganser.inputs.embeddings import READ, read_embeddings
from merganser.inputs.factorised import factorised
from merganser.inputs.factors import FactorSettings, open_factors
from merganser.inputs.joints import open_joint
from merganser.inputs.layers import LayerSource
from merganser.inputs.learned import RESULT, LearnedLayers, read_learned, read_trace
from merganser.inputs.searches import read_search
from merganser.inputs.statistics import open_statistics, passes_of
from merganser.limits import parse_json
from merganser.merging.cards import model_card
from merganser.merging.driver import choose_device, merge
from merganser.merging.method import Method
from merganser.merging.usage import usage
from merganser.models.device import usable
from merganser.overlays import FILE
from merganser.progress import Progress, unwatched
from merganser.routed import BLOCK_ROUTERS, BOTTLENECKS, GATES, ROUTER
from merganser.routed.blocks import write_block_routers
from merganser.routed.gates import write_gates
from merganser.workers import threads_wanted
from tasks.beside import COST
from tasks.paths import (
    BASE,
    CARD,
    DATA,
    EMBEDDINGS,
    JOINTS,
    LEARNED,
    MERGE_PROFILES,
    MERGED,
    SEARCHES,
    SOURCES,
    seed_folders,
)
from tasks.stage import check_method, fresh_folder, only_name, run, write_json

FILES_BESIDE = {"routers": ROUTER, "surgery": BOTTLENECKS}  # what is kept of it with a merge


def merge_entry(
    method: Method,
    values: dict[str, Any],
    source: LayerSource,
    base: Path,
    out: Path,
    profile: Path | None,
    texts: Callable[[], Mapping[str, str]],
    device: str = "cpu",
    threads: int = 1,
    output: Output = AS_THE_BASE,
    additions: Sequence[Path] = (),
    noted: Mapping[str, Any] | None = None,
    progress: Progress = unwatched,
) -> None:
    """Merge a source's layers onto the base into a fresh folder, with its card and what stands beside the base.

    `texts`: makes the text files beside the weights, such as the card, once these are written.
    `additions`: small files of the tasks' own that are kept with it. `noted`: more for the profile: the losses by
    step of the values that the method applies, its search, or what the
    statistics cost that it reads.
    """
    start_wall, start_cpu = time.perf_counter(), time.process_time()
    checkpoint = open_for_merging(base)
    with fresh_folder(out) as folder:
        merge(method, values, source, checkpoint, folder, choose_device(device), threads, output, progress)
        copy_companions(base, folder)
        output.declare(folder)
        for path in additions:
            shutil.copyfile(path, folder / path.name)
        if method.gated:
            write_gates(folder, values["k_gate"])
        if method.blended and source.learned:
            write_block_routers(folder, source.learned.values, source.tasks)
        for name, text in texts().items():
            (folder / name).write_text(text, encoding="utf-8")
    if profile:
        times = {"wall_s": time.perf_counter() - start_wall, "cpu_s": time.process_time() - start_cpu}
        rate = {"amr": additional_memory_rate(out, checkpoint, source)}
        write_json(profile, times | _usage() | rate | {"device": _device_name(device)} | dict(noted or {}))


def additional_memory_rate(merged: Path, base: Checkpoint, source: LayerSource) -> float:
    """Return the bytes of the tasks' own files per task over the bytes of the merged parameters in float32."""
    own = [merged / name for name in (FILE, BOTTLENECKS, BLOCK_ROUTERS, GATES, ROUTER) if (merged / name).is_file()]
    values = sum(prod(base.spec(name).shape) for name in source.names)
    return sum(path.stat().st_size for path in own) / len(source.tasks) / (4 * values)


def _device_name(wanted: str) -> str:
    """Name what computed: the CPU, or the GPU by its model."""
    device = choose_device(wanted)
    return "cpu" if device.type == "cpu" else f"cuda ({torch.cuda.get_device_name(device)})"


def _usage() -> dict[str, Any]:
    """Read the process's peak memory and traffic (the latter where the system counts it)."""
    counters = Path("/proc/self/io")
    counts = dict(line.split(": ") for line in counters.read_text().splitlines()) if counters.exists() else {}
    return {
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "read_bytes": int(counts.get("rchar", 0)),
        "written_bytes": int(counts.get("wchar", 0)),
        "host": platform.node(),
    }


def open_source(
    entry: Entry,
    tasks: list[str],
    seed: int,
    embedded: str | None = None,
    learned: str | None = None,
    part: str = "",
) -> LayerSource:
    """Open what an entry reads, as its method takes it: difference vectors are decomposed on the fly.

    `embedded`, `learned`: the name of the text embeddings, or of the learned values, beside which it lies. `part`: the
    folder in that of what is drawn where it lies for this seed.
    """
    if learned:
        found = read_learned(LEARNED / learned / RESULT / part, sorted(tasks))
        return LearnedLayers(opened(entry, LEARNED / learned / READ, tasks, seed), found)
    if entry.joint is not None:
        return open_joint(JOINTS / entry.joint, tasks, seed)
    if embedded:
        embeddings = read_embeddings(EMBEDDINGS / embedded, sorted(tasks))
        return opened(entry, EMBEDDINGS / embedded / READ, tasks, seed, embeddings)
    return opened(entry, DATA / entry.reads, tasks, seed, part=part)


def opened(
    entry: Entry,
    folder: Path,
    tasks: list[str],
    seed: int,
    embeddings: Mapping[str, Tensor] | None = None,
    part: str = "",
) -> LayerSource:
    """Open the deltas or factors in a folder as an entry's method takes them."""
    method = registry.get(entry.method)
    if method.reads == "statistics":
        return open_statistics(folder, tasks, seed, part)
    if entry.difference is None:
        return (open_factors if method.factored else open_deltas)(folder, tasks, seed, embeddings)
    return as_taken(method, method.validate("", entry.values), open_deltas(folder, tasks, seed, embeddings))


def as_taken(method: Method, values: dict[str, Any], deltas: LayerSource) -> LayerSource:
    """Return a source as the method takes it: decomposed as it is read, for one that reads factors."""
    if not method.factored:
        return deltas
    share = method.rank_fraction(len(deltas.tasks), **values) if method.rank_fraction else 1.0
    return factorised(deltas, FactorSettings(share))


def noted_of(entry: Entry, tasks: list[str]) -> dict[str, Any]:
    """Return how what an entry reads was learned or searched, or what it cost, under the word for it."""
    if entry.statistic:
        return {"statistics": passes_of(DATA / entry.reads, tasks)}
    if section := registry.get(entry.method).beside:
        return {section: parse_json((DATA / entry.reads / COST).read_text())}
    if entry.learned:
        return {"learned": read_trace(LEARNED / entry.learned / RESULT)}
    if entry.search:
        found = read_search(SEARCHES / entry.search)
        best = next(one for one in found["candidates"] if one["values"] == found["chosen"])
        about = {key: found[key] for key in ("chosen", "forwards")} | {key: best[key] for key in ("score", "stderr")}
        return {"search": {"name": entry.search, "candidates": len(found["candidates"]), **about}}
    return {}


def card_of(key: str, params: Params, method: Method, values: dict[str, Any], seed: int) -> dict[str, str]:
    """Return the text of the card of an entry's merge with one seed."""
    tasks = {name: read_origin(SOURCES / f"{name}.json") for name in sorted(params.tasks)}
    origins = {"(base)": origin_of(BASE), **tasks}
    shown = usage(method, params.base.family, next(iter(params.tasks)))
    return {CARD: model_card(key, method, values, params.methods[key].reads, seed, BASE, origins, shown)}


def main(argv: list[str]) -> None:
    """Merge by the entry named on the command line."""
    key = only_name(argv, "merge")
    params = load_params(Path("params.yaml"))
    entry = declared(params.methods, key, "methods")
    check_method(entry.method)
    method = registry.get(entry.method)
    noted = noted_of(entry, list(params.tasks))
    written = noted["search"]["chosen"] if entry.search else entry.values
    values = method.validate(f"methods.{key}", written)
    inner, tasks = Entry(method=entry.method, reads=params.inner(entry).reads, **written), list(params.tasks)
    start = DATA / entry.reads / (READ if inner.reads != entry.reads else "")
    base = start / "base" if inner.difference else BASE
    profile, device = MERGE_PROFILES / f"{key}.json", usable(params.merge.device, "merge.device")
    drawn = bool(entry.learned or entry.statistic or method.beside == "surgery")
    seeds = params.seeds if drawn or method.is_random(values) else [params.first_seed]
    for seed, out in seed_folders(MERGED / key, seeds).items():
        first = seed == params.first_seed
        part = str(out.relative_to(MERGED / key)) if drawn else ""
        additions = [DATA / entry.reads / part / FILES_BESIDE[method.beside]] if method.beside else []
        if method.beside or entry.search:
            source = opened(inner, start, tasks, seed)
        else:
            source = open_source(inner, tasks, seed, entry.embedding, entry.learned, part)
        merge_entry(
            method,
            values,
            source,
            base,
            out,
            profile if first else None,
            partial(card_of, key, params, method, values, seed),
            device,
            threads_wanted(),
            additions=additions,
            noted=noted,
        )


if __name__ == "__main__":
    run(main)
