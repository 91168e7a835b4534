"""Each entry's score over the saved runs, what changed between one and the next, and what got worse.

A run's point is computed once, from git and DVC's cache, and kept in the state folder: it outlives the run's data.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dvcfleet.disk import write_durably
from dvcfleet.repository import STATE_FOLDER, opened
from merganser.errors import InputError
from merganser.flows.evidence.kept_runs import SavedRun, saved_runs
from merganser.flows.evidence.lineage_diff import in_words, what_reached
from merganser.flows.evidence.run_diff import Run, compare_scores, files_of, read_run
from merganser.measures.scores import error_of_mean
from merganser.report import formats
from merganser.report.paired import Line

FILE = Path(STATE_FOLDER, "history.jsonl")
_MOST = 5  # changes that a line of the terminal names


@dataclass(frozen=True)
class Point:
    """A run: its name and commit, when it was saved (ISO 8601), and each entry's mean score with its standard error.

    `changed`: in words what reached its results and was otherwise in the run before; `worse`: the scores that fell
    since that by more than the sampling error.
    """

    run: str
    commit: str
    saved: str
    scores: Mapping[str, tuple[float, float | None]]
    changed: tuple[str, ...]
    worse: tuple[Line, ...]


def read_history(root: Path) -> list[Point]:
    """Return the points of all saved runs, oldest first, those that `merganser gc` removed too; keep new ones."""
    known = {point.commit: point for point in _kept(root)}
    runs = saved_runs(root)
    new = [number for number, run in enumerate(runs) if run.commit not in known]
    if new:
        with opened(root) as repo:
            for number in new:
                before = runs[number - 1] if number else None
                with suppress(InputError):  # a run without params.yaml is no comparison's
                    known[runs[number].commit] = _point(root, repo.cache.local, before, runs[number])
    points = sorted(known.values(), key=lambda point: point.saved)
    if new:
        write_durably(root / FILE, "".join(f"{json.dumps(asdict(point))}\n" for point in points))
    return points


def _kept(root: Path) -> Iterator[Point]:
    """Read the points that are kept; damaged lines are skipped, and computed again while their runs are there."""
    path = root / FILE
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(line)
            worse = tuple(Line(**each) for each in found.pop("worse"))
            scores = {entry: (float(mean), error) for entry, (mean, error) in found.pop("scores").items()}
            yield Point(**found | {"changed": tuple(found["changed"])}, scores=scores, worse=worse)


def _point(root: Path, cache: Any, before: SavedRun | None, run: SavedRun) -> Point:
    now = read_run(root, run.name)
    then = read_run(root, before.name) if before else None
    objects = {md5: Path(cache.oid_to_path(md5)) for each in (now, then) if each for md5 in each.files.values()}
    return Point(
        run=run.name,
        commit=run.commit,
        saved=run.saved.isoformat(),
        scores=dict(_means(now, objects)),
        changed=tuple(in_words(what_reached(root, before.name, run.name))) if before else (),
        worse=tuple(line for line in compare_scores(then, now, objects) if line.is_worse) if then else (),
    )


def _means(run: Run, objects: Mapping[str, Path]) -> Iterator[tuple[str, tuple[float, float | None]]]:
    """Give each entry's mean over the tasks whose scores are there."""
    files = files_of(run, objects)
    for entry in run.params.get("methods") or ():
        found = {task: files.metric(entry, task) for task in run.params.get("tasks") or ()}
        scores = {task: score for task, score in found.items() if "value" in score}
        if scores:
            mean = sum(score["value"] for score in scores.values()) / len(scores)
            yield entry, (mean, error_of_mean({task: score.get("stderr") for task, score in scores.items()}))


def history_lines(points: list[Point]) -> Iterator[str]:
    """Say in the terminal what each run brought, and how each entry stands against its first and its best score."""
    for point in points:
        changes = "; ".join(point.changed[:_MOST]) or "nothing that differs reached the results"
        more = f" and {len(point.changed) - _MOST} more" if len(point.changed) > _MOST else ""
        yield f"{point.saved[:16]}  {point.run}: {'the first run' if point is points[0] else changes + more}"
        for line in point.worse:
            sides = f"{100 * line.first:.2f} -> {100 * line.second:.2f} (p {formats.p_value(line.p)})"
            yield f"  worse by more than the sampling error: {line.entry} {line.column} {sides}"
    for entry, series in by_entry(points).items():
        (_, first), (best_in, best), (last_in, last) = series[0], max(series, key=lambda at: at[1]), series[-1]
        of_several = (
            f" {100 * first:.2f} in the first of {len(series)} runs, {100 * best:.2f} at best ({best_in.run}),"
            if len(series) > 1
            else ""
        )
        yield f"{entry}:{of_several} {100 * last:.2f} in {last_in.run}"
    if not points:
        yield "no run is saved yet: `merganser run` saves each that ends well, in a repository with a commit"


def by_entry(points: list[Point]) -> dict[str, list[tuple[Point, float]]]:
    """Return each entry's mean over the runs that have it."""
    entries = dict.fromkeys(entry for point in points for entry in point.scores)
    return {entry: [(each, each.scores[entry][0]) for each in points if entry in each.scores] for entry in entries}
