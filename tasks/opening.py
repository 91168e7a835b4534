"""How a merge opens an entry's input, and what it copies from it into its profile: a row per input.

`merganser.config.inputs` has the checks and expectations of inputs, so that an edit there does not rerun merges.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser import registry
from merganser.config.sections import Entry
from merganser.inputs.deltas import open_deltas
from merganser.inputs.embeddings import READ, read_embeddings
from merganser.inputs.factors import open_factors
from merganser.inputs.joints import open_joint
from merganser.inputs.layers import GivenLayers, LayerSource
from merganser.inputs.learned import RESULT, TRACE, read_learned
from merganser.inputs.statistics import open_statistics, passes_of
from merganser.outputs import read_json
from merganser.tasks.stages import COST, DATA

SEARCH, FOUND = "search", "search.json"  # the word for what a search chose, and its file in `RESULT`


@dataclass(frozen=True)
class Reading:
    """The input of a merge: the entry's input `folder`, and in `start` the folder of what that input is of.

    `part`: the subfolder for this seed, if the input is drawn.
    """

    entry: Entry
    folder: Path
    start: Path
    tasks: list[str]
    seed: int
    part: str


def _nothing(folder: Path, tasks: list[str]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Opening:
    """How an input is opened.

    `drawn`: there is one per seed. `noted`: takes the folder and the tasks, and returns how the input was made or
    what it cost, for a merge's profile.
    """

    source: Callable[[Reading], LayerSource]
    drawn: bool = False
    noted: Callable[[Path, list[str]], dict[str, Any]] = _nothing


def _models(read: Reading) -> LayerSource:
    """Open deltas, or factors for a method that takes them; a merge decomposes difference vectors itself."""
    if registry.get(read.entry.method).factored and read.entry.difference is None:
        return open_factors(read.start, read.tasks, read.seed)
    return open_deltas(read.start, read.tasks, read.seed, in_order=True)


def _with_embeddings(read: Reading) -> LayerSource:
    return GivenLayers(_models(read), {"embeddings": read_embeddings(read.folder, sorted(read.tasks))})


def _with_learned(read: Reading) -> LayerSource:
    return GivenLayers(_models(read), {"learned": read_learned(read.folder / RESULT / read.part, sorted(read.tasks))})


def _cost(folder: Path, tasks: list[str]) -> dict[str, Any]:
    return {folder.parent.name: read_json(folder / COST)}


def _choice(folder: Path, tasks: list[str]) -> dict[str, Any]:
    search = read_json(folder / RESULT / FOUND)
    best = next(one for one in search["candidates"] if one["values"] == search["chosen"])
    about = {key: search[key] for key in ("chosen", "forwards", "grid")} | {
        key: best[key] for key in ("score", "stderr")
    }
    return {SEARCH: {"name": folder.name, "candidates": len(search["candidates"]), **about}}


OPENINGS: Mapping[str, Opening] = {
    "deltas": Opening(_models),
    "svd": Opening(_models),
    "joints": Opening(lambda read: open_joint(read.start, read.tasks, read.seed)),
    "differences": Opening(_models),
    "embeddings": Opening(_with_embeddings),
    "routers": Opening(_models, noted=_cost),
    "surgery": Opening(_models, drawn=True, noted=_cost),
    "learned": Opening(
        _with_learned, drawn=True, noted=lambda folder, _: {"learned": read_json(folder / RESULT / TRACE)}
    ),
    "statistics": Opening(
        lambda read: open_statistics(read.start, read.tasks, read.seed, read.part),
        drawn=True,
        noted=lambda folder, tasks: {"statistics": passes_of(folder, tasks)},
    ),
    "searches": Opening(_models, noted=_choice),
}


def opening_of(entry: Entry) -> Opening:
    """Return how an entry's input is opened."""
    return OPENINGS[entry.reads.partition("/")[0]]


def open_source(entry: Entry, of: str, tasks: list[str], seed: int, part: str = "") -> LayerSource:
    """Open an entry's input as its method takes it, with deltas in the order of `tasks`.

    `of`: what its input is of (`Params.inner`), or the input. `part`: the subfolder for this seed, if the input is
    drawn.
    """
    read = Reading(entry.model_copy(update={"reads": of}), DATA / entry.reads, start_of(entry, of), tasks, seed, part)
    return opening_of(entry).source(read)


def start_of(entry: Entry, of: str) -> Path:
    """Return the subfolder of an entry's input with what that input is of."""
    return DATA / entry.reads / (READ if of != entry.reads else "")


def input_profile(entry: Entry, tasks: list[str]) -> dict[str, Any]:
    """Return how an entry's input was learned or searched, or what it cost, under its key in the profile."""
    return opening_of(entry).noted(DATA / entry.reads, tasks)
