"""Points: single merges that studies and searches measure, each by a stage of its own.

`points.yaml` lists them by their ids for dvc.yaml. It follows from params.yaml, and `merganser status` and
`merganser run` write it. A point's id has a digest of all the choices that its scores follow from, so that it stays
while these stay, and a point that two studies need is one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from merganser import registry
from merganser.config import PARAMS, POINTS_FILE
from merganser.config.entries import ablation_candidates, budgets_of, steps_of
from merganser.config.inputs.from_data import search_candidates
from merganser.config.params import Params
from merganser.config.sections import Ablation, Entry, Search
from merganser.errors import InputError
from merganser.hashes import sha256_of_json
from merganser.merging.binding import each_map
from merganser.outputs import replacing
from merganser.studies.candidates import value_combinations
from merganser.studies.subsets import Subset, all_subsets, first_tasks, task_orders

INDIVIDUAL = "individual"  # the tasks' own models, which scores on validation data are relative to
SCORES = "scores.json"  # in the folder of each point, beside the results of its tasks' examples
STUDIES = "studies"  # where points lie whose scores are reported
HEADER = "# The merges that the studies and searches of params.yaml measure: `merganser status` writes this file.\n"
NONE = f"{HEADER}points: {{}}\nsteps: {{}}\n"
DIGITS = 12  # of the digest in an id

Split = Literal["prepared", "validation"]  # the folders of examples, under `data/`
Values = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A merge of some tasks by one entry, and the examples that it is measured on.

    `where`: its place in params.yaml. `place`: the folder in `data/measures/points` that it lies in. `others`: tasks
    that are not merged, and measured too. `budget`: the share of the parameters' bytes that a task's part may take.
    `tried`: the points of which the best one says the values of this one.
    """

    where: str
    place: str
    entry: Entry
    split: Split
    tasks: tuple[str, ...]
    choices: dict[str, Any]  # of params.yaml besides, which scores follow from
    others: tuple[str, ...] = ()
    budget: float | None = None
    tried: tuple["Point", ...] = field(default=(), repr=False)

    @cached_property
    def id(self) -> str:
        """Return its method, and a digest of all choices that its scores depend on."""
        merged = [self.entry.method, self.entry.reads, self.entry.values, self.tasks, self.budget]
        measured = [self.place, self.split, self.others, dict(self.choices), [one.id for one in self.tried]]
        return f"{self.entry.method}-{sha256_of_json([merged, measured])[:DIGITS]}"

    @property
    def folder(self) -> Path:
        """Return its folder in `data/measures/points`."""
        return Path(self.place, self.id)

    @property
    def profile(self) -> Path:
        """Return the file in `data/profiles` with its run time."""
        return Path("points", self.place, f"{self.id}.json")

    @property
    def listed(self) -> dict[str, str]:
        """Return its values that dvc.yaml reads."""
        read = {"method": self.entry.method, "reads": self.entry.reads, "split": self.split}
        return {"of": self.where, "place": self.place} | read | ({"tried": self.tried[0].place} if self.tried else {})


@dataclass(frozen=True)
class Points:
    """All points of a params.yaml, by their studies and searches."""

    params: Params

    def task_study(self, name: str) -> dict[Subset, Point]:
        """Return an entry's merges of subsets of the tasks."""
        params, entry = self.params, self.params.studies.tasks.methods[name]
        subsets = all_subsets(params.tasks, params.studies.tasks.subsets, params.first_seed)
        where = f"studies.tasks.methods.{name}"
        return {subset: self._subset(where, entry, subset, unseen=entry.unseen) for subset in subsets}

    def continual(self, name: str) -> list[list[Point]]:
        """Return an entry's merges of the first task, the first two and so on, for each order of the tasks."""
        study = self.params.studies.continual
        entry = study.methods[name]
        in_order = registry.get(entry.method).in_order
        where = f"studies.continual.methods.{name}"
        return [
            [self._subset(where, entry, first if in_order else tuple(sorted(first))) for first in first_tasks(order)]
            for order in task_orders(self.params.tasks, study.orders, self.params.first_seed)
        ]

    def _subset(self, where: str, entry: Entry, subset: Subset, *, unseen: bool = False) -> Point:
        others = tuple(task for task in sorted(self.params.tasks) if task not in subset) if unseen else ()
        own = Entry(method=entry.method, reads=entry.reads, **values_for(entry.values, subset))
        return self._point(where, own, tasks=subset, others=others)

    def sweep(self, name: str) -> list[tuple[Values, Point]]:
        """Return the merges of a sweep, each with its parameter's value."""
        sweep = self.params.studies.sweeps[name]
        return [
            (values, self._point(f"studies.sweeps.{name}", sweep.at(values)))
            for values in value_combinations(sweep.over)
        ]

    def budgets(self, name: str) -> dict[str, Point]:
        """Return an entry's merges by the names of its budgets."""
        entry = self.params.studies.budgets.methods[name]
        where = f"studies.budgets.methods.{name}"
        budgets = budgets_of(self.params, registry.get(entry.method))
        return {at: self._point(where, entry, budget=budget) for at, budget in budgets.items()}

    def ablation(self, name: str) -> dict[str, Point]:
        """Return the merges of an ablation by step; a searched step has its candidates as `tried`."""
        ablation = self.params.studies.ablations[name]
        return {step: self._step(name, ablation, entry) for step, entry in steps_of(ablation).items()}

    def _step(self, name: str, ablation: Ablation, entry: Entry) -> Point:
        where, every = f"studies.ablations.{name}", ablation_candidates(ablation, entry)
        if len(every) == 1:
            return self._point(where, entry.at(every[0]))
        tried = tuple(self._candidate(where, f"ablations/{name}", entry.at(values)) for values in every)
        return self._point(where, entry, tried=tried)

    def search(self, name: str) -> list[Point]:
        """Return the candidates of a search; for CMA-ES only the first, on which all others depend."""
        search = self.params.searches[name]
        return [
            self._candidate(f"searches.{name}", f"searches/{name}", search.entry(values))
            for values in first_candidates(self.params, search)
        ]

    @cached_property
    def individual(self) -> Point:
        """Return the points of the tasks' own models on validation data."""
        base, parameters = self.params.base, self.params.parameters
        rules = {"heads": base.heads, "parameters": parameters.model_dump()}
        entry = Entry(method=INDIVIDUAL, reads="checkpoints")
        point = self._candidate(INDIVIDUAL, INDIVIDUAL, entry)
        return replace(point, choices=point.choices | rules)

    def _candidate(self, where: str, place: str, entry: Entry) -> Point:
        """Return a point that is measured on validation data."""
        return self._point(where, entry, place, "validation")

    def _point(
        self, where: str, entry: Entry, place: str = STUDIES, split: Split = "prepared", tasks: Subset = (), **more: Any
    ) -> Point:
        """Return a point, by default one with reported scores."""
        evaluation = self.params.evaluation.model_dump(include={"batch_size", "device", "precision"})
        choices = {"seed": self.params.first_seed, "family": self.params.base.family, **evaluation}
        return Point(where, place, entry.at({}), split, tasks or tuple(sorted(self.params.tasks)), choices, **more)

    def _lists(self) -> Iterator[Iterable[Point]]:
        studies = self.params.studies
        yield from (self.search(name) for name in self.params.searches)
        yield from (self.task_study(name).values() for name in studies.tasks.methods)
        yield from (points for name in studies.continual.methods for points in self.continual(name))
        yield from ([point for _, point in self.sweep(name)] for name in studies.sweeps)
        yield from (self.ablation(name).values() for name in studies.ablations)
        yield from (self.budgets(name).values() for name in studies.budgets.methods)

    @cached_property
    def by_id(self) -> dict[str, Point]:
        """Return all points; candidates come before the points that choose from them."""
        all_points = [each for points in self._lists() for point in points for each in (*point.tried, point)]
        own = [self.individual] * any(point.split == "validation" for point in all_points)
        return {point.id: point for point in (*own, *all_points)}

    @property
    def text(self) -> str:
        """Return the text of `points.yaml`: points, and steps, which take the values of their best candidate."""
        parts = {"points": [], "steps": []}  # type: dict[str, list[Point]]
        for point in self.by_id.values():
            parts["steps" if point.tried else "points"].append(point)
        return HEADER + "".join(_part(name, points) for name, points in parts.items())


def _part(name: str, points: list[Point]) -> str:
    lines = [f"  {point.id}: {json.dumps(point.listed)}\n" for point in points]
    return f"{name}:\n{''.join(lines)}" if points else f"{name}: {{}}\n"


@cache
def _points(text: str) -> Mapping[str, Point]:
    return Points(Params.model_validate_json(text)).by_id


def points_by_id(params: Params) -> Mapping[str, Point]:
    """Return all points of a params.yaml; the list is made once."""
    return _points(params.model_dump_json())


def values_for(values: Mapping[str, Any], subset: Subset) -> Values:
    """Restrict maps by task, such as `coefficients`, to the tasks that are merged."""

    def restricted(own: Mapping[str, Any]) -> Values:
        return {
            key: {task: value[task] for task in value if task in subset} if isinstance(value, Mapping) else value
            for key, value in own.items()
        }

    return each_map(values, restricted)


def first_candidates(params: Params, search: Search) -> list[Values]:
    """Return the candidates that do not depend on scores: a whole grid; for CMA-ES all coefficients 1."""
    if search.evolve is not None:
        return [{"coefficients": dict.fromkeys(sorted(params.tasks), 1.0)}]
    return search_candidates(search)


def write_points(params: Params, root: Path = Path()) -> bool:
    """Write the points of a params.yaml next to it; tell whether the file changed."""
    text, path = Points(params).text.encode(), root / POINTS_FILE
    if path.is_file() and not path.is_symlink() and path.read_bytes() == text:
        return False
    with replacing(path) as out:
        out.write(text)
    return True


def check_points(params: Params) -> None:
    """Raise InputError if an existing `points.yaml` does not fit params.yaml."""
    if POINTS_FILE.is_file() and POINTS_FILE.read_bytes() != Points(params).text.encode():
        raise InputError(f"{POINTS_FILE}: is of another {PARAMS}; run `merganser status` to rewrite it, then run again")
