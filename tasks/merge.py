"""Merge the tasks' models by one entry of `methods`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser import registry
from merganser.checkpoints.origins import origin_of, read_origin
from merganser.config.loading import load_params
from merganser.config.params import Entry, Params, declared
from merganser.inputs.deltas import open_deltas
from merganser.inputs.embeddings import READ, read_embeddings
from merganser.inputs.factors import open_factors
from merganser.inputs.joints import open_joint
from merganser.inputs.layers import LayerSource
from merganser.inputs.learned import RESULT, LearnedLayers, read_learned, read_trace
from merganser.inputs.searches import read_search
from merganser.inputs.statistics import open_statistics, passes_of
from merganser.limits import parse_json
from merganser.merging.cards import CARD, model_card
from merganser.merging.entry import as_taken, merge_entry
from merganser.merging.method import Method
from merganser.merging.usage import usage
from merganser.models.device import usable
from merganser.outputs import fresh_folder
from merganser.routed import BOTTLENECKS, ROUTER
from merganser.workers import threads_wanted
from tasks.beside import COST
from tasks.paths import (
    BASE,
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
from tasks.stage import check_method, only_name, run

FILES_BESIDE = {"routers": ROUTER, "surgery": BOTTLENECKS}  # what is kept of it with a merge


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
        with fresh_folder(out) as folder:
            merge_entry(
                method,
                values,
                source,
                base,
                folder,
                profile if first else None,
                partial(card_of, key, params, method, values, seed),
                device,
                threads_wanted(),
                additions=additions,
                noted=noted,
            )


if __name__ == "__main__":
    run(main)
