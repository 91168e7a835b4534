"""Methods with a part per task at the same number of bytes, and paired tests at each budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.config.points import SCORES, Points
from merganser.evaluation.examples import read_results
from merganser.measures.scores import LEVEL, rank_value
from merganser.measures.significance import compare_models, holm, mean_of_tasks
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.formats import Wording, settings
from merganser.report.plots import LINES, PALETTE, canvas, log_scale, to_svg
from merganser.report.scores import MeanScore
from merganser.report.sections import Section

MARKERS = ("o", "s", "^")  # beside LINES, for a lone dot has no line


@dataclass(frozen=True, kw_only=True)
class Fitted(MeanScore):
    """An entry's merge with parts of some bytes, and the files of each task's results."""

    entry: str
    method: str
    values: Mapping[str, Any]  # that were fitted; nothing where the size is the method's own
    amr: float  # bytes a task takes, as a share of the merged parameters'
    results: Mapping[str, Path]


@dataclass(frozen=True)
class BudgetRow:
    """An entry at a budget, with its difference from the best one; `best` itself has no p-value."""

    fitted: Fitted
    difference: float
    p: float | None  # two-sided, of no difference on the same examples
    corrected: float | None  # for the number of entries that are compared at this budget

    @property
    def is_best(self) -> bool:
        """Tell whether it is the one that the others are compared with."""
        return self.p is None

    @property
    def tied(self) -> bool:
        """Tell whether the test finds no difference from the best one."""
        return self.corrected is not None and self.corrected >= LEVEL

    def as_json(self) -> dict[str, Any]:
        """Return its numbers as plain data."""
        fitted = self.fitted
        about = {"entry": fitted.entry, "method": fitted.method, "fitted": dict(fitted.values), "amr": fitted.amr}
        compared = {"difference": self.difference, "p": self.p, "corrected": self.corrected}
        return about | {"score": fitted.mean, "stderr": fitted.error, **compared, "tasks": dict(fitted.by_task)}


@dataclass(frozen=True)
class Matched:
    """Every entry's merges by ascending bytes, and the entries within each budget, by name."""

    curves: Mapping[str, list[Fitted]]
    budgets: Mapping[float, Mapping[str, BudgetRow]]
    too_small: Mapping[tuple[float, str], str]  # by budget and entry: why nothing fits

    @property
    def lines(self) -> Iterator[list[Any]]:
        """Give the lines of a table, one an entry and budget that it fits into."""
        for budget, members in self.budgets.items():
            for entry, one in members.items():
                fitted = one.fitted
                about = [budget, entry, fitted.method, settings(fitted.values), fitted.amr, fitted.mean, fitted.error]
                scores = [score["value"] for score in fitted.by_task.values()]
                yield [*about, one.difference, one.p, one.corrected, *scores]

    @property
    def header(self) -> list[str]:
        """Name the columns of `lines`."""
        tasks = next((fit.tasks for curve in self.curves.values() for fit in curve), [])
        about = ["budget", "entry", "method", "fitted", "amr", "score", "stderr"]
        return [*about, "difference", "p", "corrected", *tasks]

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data, and why an entry fits no budget."""
        entries = [
            {"budget": budget, **one.as_json()} for budget, members in self.budgets.items() for one in members.values()
        ]
        reasons = [{"budget": at, "entry": entry, "reason": why} for (at, entry), why in self.too_small.items()]
        return {"entries": entries, "too_small": reasons}


def read(comparison: Comparison) -> Matched | None:
    """Read every entry's results at its budgets; raise InputError naming a missing file."""
    params = comparison.params
    study, curves, too_small = params.studies.budgets, dict[str, list[Fitted]](), dict[tuple[float, str], str]()
    members: dict[float, dict[str, Fitted]] = {budget: {} for budget in (sorted(study.at) if study.methods else ())}
    for entry, about in study.methods.items():
        curves[entry] = []
        for point in Points(params).budgets(entry).values():
            folder, budget = comparison.paths.POINTS / point.folder, point.budget
            content = read_json(folder / SCORES)
            if budget is not None and "reason" in content:
                too_small[budget, entry] = content["reason"]
                continue
            fitted = Fitted(
                by_task={task: content["scores"][task] for task in params.measured},
                entry=entry,
                method=about.method,
                values=content["fitted"],
                amr=content["amr"],
                results={task: folder / f"{task}.safetensors" for task in params.measured},
            )
            curves[entry].append(fitted)
            for limit in members:
                if budget in (None, limit) and fitted.amr <= limit:
                    members[limit][entry] = fitted
        curves[entry].sort(key=lambda one: one.amr)
    compared = {budget: _compared(list(fits.values())) for budget, fits in members.items()}
    return Matched(curves, compared, too_small) if curves else None


def _compared(fits: Sequence[Fitted]) -> dict[str, BudgetRow]:
    """Compare the entries of a budget with its best one, on the same examples."""
    if not fits:
        return {}
    metrics = {task: score["metric"] for task, score in fits[0].by_task.items()}
    models = {task: [read_results(one.results[task]) for one in fits] for task in metrics}
    pairs = mean_of_tasks([compare_models(metrics[task], models[task]) for task in metrics])
    best = max(range(len(fits)), key=lambda number: rank_value(fits[number].mean))
    others = [number for number in range(len(fits)) if number != best]
    p = pairs.p[others, [best] * len(others)]
    corrected = dict(zip(others, zip(p.tolist(), holm(p).tolist(), strict=True), strict=True))
    return {
        one.entry: BudgetRow(one, one.mean - fits[best].mean, *corrected.get(number, (None, None)))
        for number, one in enumerate(fits)
    }


def plots(matched: Matched, wording: Wording) -> dict[str, str]:
    """Plot each entry's mean score over the bytes per task; a single dot for an entry of fixed size."""
    figure, axes = canvas(5.2, 4.0)
    for index, (entry, points) in enumerate(matched.curves.items()):
        row, column = divmod(index, len(PALETTE))
        colour, style, dot = PALETTE[column], LINES[row % len(LINES)], MARKERS[row % len(MARKERS)]
        places, means = [100 * point.amr for point in points], [100 * point.mean for point in points]
        axes.plot(places, means, color=colour, linestyle=style, linewidth=1.5, marker=dot, markersize=3.5, label=entry)
    log_scale(axes, "x", [*matched.budgets, *(point.amr for points in matched.curves.values() for point in points)])
    axes.set_xticks([100 * budget for budget in matched.budgets], [f"{100 * budget:g}" for budget in matched.budgets])
    axes.minorticks_off()
    axes.set(xlabel="bytes a task, % of the merged parameters'", ylabel=wording.axis)
    axes.grid(axis="both")
    figure.legend(loc="outside lower center", ncols=min(4, len(matched.curves)))
    return {"study_budgets": to_svg(figure)}


SECTION = Section(
    read=read,
    tables=lambda matched: {"plots/study_budgets.csv": (matched.header, matched.lines)},
    plots=plots,
    numbers=lambda matched: (matched or Matched({}, {}, {})).as_json(),
    inside="studies",
)
