"""Merge some tasks by one point of `points.yaml`, measure the merge's scores and results, and delete it."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from merganser import registry
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.vocabulary.writing import write_like_base
from merganser.config import PARAMS, POINTS_FILE
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.points import INDIVIDUAL, SCORES, Point, Points, Values
from merganser.errors import InputError
from merganser.evaluation.examples import write_results
from merganser.hashes import sha256_of_tree
from merganser.inputs.layers import LayerSource
from merganser.inputs.model_deltas import open_models
from merganser.merging.entry import additional_memory_rate
from merganser.outputs import fresh_folder, read_json, write_json
from merganser.overlays.budget import TooFewBytesError
from merganser.studies.candidates import Candidate, MeasuredScore, format_values, relative_candidate
from merganser.studies.merges import ScoringSetup, merge_results, score_on
from merganser.tasks.opening import open_source, start_of
from merganser.tasks.scoring import open_tasks
from merganser.tasks.stage import check_found, run_main
from merganser.tasks.stages import BASE, CHECKPOINTS, DATA, POINTS, PROFILES


def main(argv: list[str]) -> None:
    """Measure the point with the given id, and write how many seconds it took."""
    start_wall, start_cpu = time.perf_counter(), time.process_time()
    params, point = point_of(argv)
    content = measure_point(params, point, point.entry.values, POINTS / point.folder)
    times = {"wall_s": time.perf_counter() - start_wall, "cpu_s": time.process_time() - start_cpu}
    write_json(PROFILES / point.profile, times)
    print(f"{point.where}: {_said(content)} by {format_values(content['values']) or point.entry.method}")


def point_of(argv: list[str]) -> tuple[Params, Point]:
    """Return the point with the id on the command line; raise InputError if params.yaml has no such point."""
    params = load_params()
    points = Points(params).by_id
    if len(argv) != 1 or argv[0] not in points:
        reason = f"{POINTS_FILE} lists a point that {PARAMS} does not have: {' '.join(argv) or 'none'}"
        raise InputError(f"{reason}; run `merganser status` to rewrite {POINTS_FILE}, then run again")
    return params, points[argv[0]]


def _said(content: dict[str, Any]) -> str:
    if "reason" in content:
        return f"does not fit: {content['reason']}"
    values = [score["value"] for score in content["scores"].values()]
    return f"{sum(values) / len(values):.4f} on {', '.join(content['scores'])}"


@dataclass(frozen=True)
class Opened:
    """The opened inputs of a point: those of its merge, and those of its evaluation."""

    point: Point
    source: LayerSource
    setup: ScoringSetup

    def measure(self, values: Values, folder: Path) -> dict[str, Any]:
        """Merge by these values and write each task's results into a folder; return scores, and the merge's digest."""
        method, fitted = registry.get(self.point.entry.method), self._fitted(values)
        filled = method.validate(self.point.where, {**values, **fitted})
        with TemporaryDirectory(dir=folder) as made:
            merged, scores = Path(made), {}
            for task, own, results in merge_results(method, filled, self.source, self.setup, merged, self.point.others):
                write_results(folder / f"{task}.safetensors", results)
                scores[task] = score_on(own, results)
            rate = partial(additional_memory_rate, method, merged, self.setup.base, self.source)
            parts = {"fitted": fitted, "amr": rate()} if method.overlay else {}
            return {"merge": sha256_of_tree(merged), **parts, "scores": scores}

    def _fitted(self, values: Values) -> Values:
        """Return the values that fit the tasks' parts into the budget, if there is one."""
        fitting = registry.get(self.point.entry.method).within
        budget = self.point.budget
        return {} if fitting is None or budget is None else fitting.values(self.source, budget)


def measure_point(params: Params, point: Point, values: Values, out: Path, **more: Any) -> dict[str, Any]:
    """Measure a point by these values; write and return its scores, or why no merge fits its budget.

    `more`: further keys of the file.
    """
    check_found("methods", point.entry.method)
    check_found("families", params.base.family)
    about: dict[str, Any] = {"method": point.entry.method, "reads": point.entry.reads, "values": dict(values)}
    about |= {"tasks": point.tasks, "split": point.split, "seed": params.first_seed}
    with open_point(params, point) as opened, fresh_folder(out) as folder:
        try:
            measured = opened.measure(values, folder)
        except TooFewBytesError as error:
            measured = {"reason": str(error)}
        content = about | measured | more
        write_json(folder / SCORES, content)
    return content


def candidates_at(params: Params, points: Iterable[Point]) -> list[Candidate]:
    """Return candidates' scores on the validation split, relative to the individual models."""
    individual = scores_at(Points(params).individual)
    return [relative_candidate(dict(one.entry.values), scores_at(one), individual) for one in points]


def scores_at(point: Point) -> dict[str, MeasuredScore]:
    """Return a point's score on each task."""
    return measured_scores(read_json(POINTS / point.folder / SCORES)["scores"])


def measured_scores(scores: Mapping[str, Any]) -> dict[str, MeasuredScore]:
    """Return the value and the error of each task's score."""
    return {task: MeasuredScore(value=one["value"], stderr=one["stderr"]) for task, one in scores.items()}


@contextmanager
def open_point(params: Params, point: Point) -> Iterator[Opened]:
    """Open a point's inputs as a merge does, and its tasks' examples and networks."""
    data, names = DATA / point.split, {*point.tasks, *point.others}
    if point.entry.method == INDIVIDUAL and point.entry.reads == CHECKPOINTS.name:
        with _own_models(params) as source:
            yield Opened(point, source, open_tasks(params, data, names))
        return
    inner = params.inner(point.entry)
    source = open_source(point.entry, inner.reads, list(point.tasks), params.first_seed)
    base = start_of(point.entry, inner.reads) / "base" if inner.difference else BASE
    yield Opened(point, source, open_tasks(params, data, names, base))


@contextmanager
def _own_models(params: Params) -> Iterator[LayerSource]:
    """Open the tasks' own models as a source of merges, as for `individual`."""
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    with TemporaryDirectory(prefix="merganser-") as made:
        lie = {task: write_like_base(BASE, task, CHECKPOINTS / task, Path(made)) for task in sorted(params.tasks)}
        yield open_models(open_for_merging(BASE), {task: open_model(path) for task, path in lie.items()}, rules)


if __name__ == "__main__":
    run_main(main)
