"""The results of a comparison, from which every section of the report is computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, TypeVar

from merganser.config import PARAMS
from merganser.config.params import Params
from merganser.evaluation.scoring import Score
from merganser.hashes import sha256_of_json
from merganser.limits import read_yaml
from merganser.outputs import read_json
from merganser.report.formats import Wording, wording_of
from merganser.report.paired import MANY, Significance, read_significance
from merganser.report.rows import REFERENCES, Row, best, in_group, make_rows, with_data
from merganser.report.scores import MergeMeasures, Scores, read_scores

T = TypeVar("T")
DIGITS = 8  # of a digest in DVC's tables
TIMES = ("wall_s", "peak_rss_bytes")  # vary from run to run


@dataclass(frozen=True)
class Comparison:
    """The stages' results, and values that several sections need; each is read on first use.

    `paths`: the stages' output paths, by the names of `merganser.tasks.stages`. `given`: values that are already
    known, by the function that would read them.
    """

    params: Params
    paths: ModuleType
    given: Mapping[Callable[..., Any], Any] = field(default_factory=dict)

    @cached_property
    def _found(self) -> dict[Callable[..., Any], Any]:
        return dict(self.given)

    def of(self, read: Callable[["Comparison"], T]) -> T:
        """Return the result of a section's `read` function, which is called once."""
        if read not in self._found:
            self._found[read] = read(self)
        value: T = self._found[read]
        return value

    @property
    def tasks(self) -> list[str]:
        """List the tasks that entries are measured on."""
        return list(self.params.measured)

    @cached_property
    def scores(self) -> dict[str, Scores]:
        """Every entry's scores, in the order of params.yaml."""
        return read_scores(self.params, self.paths.METRICS, self.paths.MERGE_PROFILES, self.paths.UNSEEN)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the result table."""
        return make_rows(self.params, self.scores, self.paths.METRICS, self.paths.RECORDS, self.paths.PROFILES)

    @cached_property
    def shown(self) -> list[Row]:
        """The rows that the page and its plots show: all, or the references and the `MANY` best."""
        if len(self.rows) <= MANY:
            return self.rows
        references = in_group(self.rows, "reference")
        others = sorted((row for row in self.rows if row not in references), key=lambda row: -row.scores.mean)
        kept = {row.entry for row in [*references, *others[:MANY]]}
        return [row for row in self.rows if row.entry in kept]

    @property
    def wording(self) -> Wording:
        """What the scores are called."""
        return wording_of(next(iter(self.scores.values())).metrics.values())

    @cached_property
    def measured(self) -> MergeMeasures:
        """The measures of the tasks, and of every entry's merge."""
        merges = {row.entry: read_json(self.paths.MERGE_MEASURES / f"{row.entry}.json") for row in self.rows}
        return MergeMeasures(read_json(self.paths.TASK_MEASURES), merges)

    @cached_property
    def significance(self) -> Significance:
        """The tests of all pairs of entries."""
        return read_significance(self.rows, self.paths.EXAMPLES)

    @cached_property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """Each entry's numbers by task, without times: they depend on the inputs alone."""
        return {row.entry: numbers_of(row) for row in self.rows}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The best entry of each kind with its mean score, and values that tell two runs apart: at most twelve.

        DVC shows each as a column of `dvc exp show`. The best are those of `best_single` (one model for all
        tasks), `best_with_parts` (also a part per task) and `best_with_data` (either, with data).
        """
        without = [row for row in self.rows if row.data == "NDI"]
        leaders = {
            "best_single": best(in_group(without, "single")),
            "best_with_parts": best(in_group(without, "parts")),
            "best_with_data": best([row for row in with_data(self.rows) if row.group != "reference"]),
        }
        content: dict[str, Any] = {}
        for name, row in leaders.items():
            if row is not None:
                content |= {name: row.entry, f"{name}_mean": row.scores.mean}
        means = {row.about.name: row.scores.mean for row in reversed(in_group(self.rows, "reference"))}
        content |= {f"{name}_mean": means[name] for name in REFERENCES if name in means}
        digests = {"params": read_yaml(PARAMS), "scores": self.numbers}
        # not `tasks`: DVC would confuse it with the dependency of that name
        counts = {"entry_count": len(self.rows), "task_count": len(self.tasks)}
        return content | counts | {f"{name}_digest": sha256_of_json(of)[:DIGITS] for name, of in digests.items()}


def numbers_of(row: Row) -> dict[str, Any]:
    """Return an entry's numbers, task by task."""
    scores = row.scores
    return {
        **_by_metric(scores.by_task),
        **{name: value for name, value in row.measures.items() if name not in TIMES},
        **({} if scores.spread is None else {"spread": scores.spread}),
        **({"unseen": _by_metric(scores.unseen)} if scores.unseen else {}),
    }


def metrics_of(row: Row) -> dict[str, float]:
    """Return the few numbers in an entry's row of `dvc metrics show`; none varies from run to run."""
    scores = row.scores
    values = {
        "mean": scores.mean,
        "normalised_score": scores.normalised,
        "amr": row.amr,
        "spread": scores.spread,
        "unseen": scores.unseen_mean if scores.unseen else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _by_metric(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Return each task's value under the name of its metric."""
    by_metric: dict[str, dict[str, float]] = {}
    for task, score in scores.items():
        by_metric.setdefault(score["metric"], {})[task] = score["value"]
    return by_metric
