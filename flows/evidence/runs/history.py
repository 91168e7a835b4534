"""Each entry's score over the saved runs, with the changes between runs and the scores that fell.

Each run is read once, from git and DVC's cache. Its point stays in the state folder after its data are deleted.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

from pydantic import TypeAdapter

from dvcfleet.disk import write_durably
from dvcfleet.repository import STATE_FOLDER, is_writable, opened
from merganser.errors import InputError
from merganser.flows.evidence.kept_runs import SavedRun, saved_runs
from merganser.flows.evidence.runs.diff import RunDiff, compare_lineages
from merganser.flows.evidence.runs.run import Run, read_run
from merganser.measures.scores import error_of_mean
from merganser.report.run_scores import PairedScore, read_score

FILE = Path(STATE_FOLDER, "history.jsonl")


@dataclass(frozen=True)
class SavedPoint:
    """A run: its name, commit and time (ISO 8601), and each entry's mean score with its standard error.

    `changed`: changes since the run before that reached its results; `worse`: scores that fell since then by more
    than the sampling error.
    """

    run: str
    commit: str
    saved: str
    scores: Mapping[str, tuple[float, float | None]]
    changed: tuple[str, ...]
    worse: tuple[PairedScore, ...]


_POINT = TypeAdapter(SavedPoint)


def read_history(root: Path) -> list[SavedPoint]:
    """Return the points of all saved runs, oldest first, also of deleted runs; store new points if possible."""
    known = {point.commit: point for point in _kept(root)}
    runs = saved_runs(root)
    new = [(before, run) for before, run in zip([None, *runs], runs, strict=False) if run.commit not in known]
    if new:
        with opened(root) as repo:
            read = lru_cache(maxsize=2)(partial(read_run, repo))  # each run is read as the next one's predecessor too
            for before, run in new:
                with suppress(InputError):  # a run without params.yaml is no comparison's
                    known[run.commit] = _point(run, read(run.name), read(before.name) if before else None)
    places = {run.commit: place for place, run in enumerate(runs)}  # several may be saved in one second
    points = sorted(known.values(), key=lambda point: (point.saved, places.get(point.commit, -1)))
    if new and is_writable(root):
        write_durably(root / FILE, "".join(f"{json.dumps(asdict(point))}\n" for point in points))
    return points


def _kept(root: Path) -> Iterator[SavedPoint]:
    """Read the stored points; damaged lines are skipped, and computed again if their runs still exist."""
    path = root / FILE
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            yield _POINT.validate_json(line)


def _point(saved: SavedRun, run: Run, before: Run | None) -> SavedPoint:
    return SavedPoint(
        run=run.name,
        commit=saved.commit,
        saved=saved.saved.isoformat(),
        scores=dict(_means(run)),
        changed=tuple(compare_lineages(before, run).in_words(reached=True)) if before else (),
        worse=tuple(RunDiff(before, run).worse) if before else (),
    )


def _means(run: Run) -> Iterator[tuple[str, tuple[float, float | None]]]:
    """Return each entry's mean over the tasks with scores."""
    for entry in run.params.get("methods") or ():
        scores_read = {task: read_score(run.in_data, entry, task) for task in run.params.get("tasks") or ()}
        scores = {task: score for task, score in scores_read.items() if "value" in score}
        if scores:
            mean = sum(score["value"] for score in scores.values()) / len(scores)
            yield entry, (mean, error_of_mean({task: score.get("stderr") for task, score in scores.items()}))
