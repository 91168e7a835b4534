"""Differences between runs as lines for the terminal, and as single HTML files that load nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dvcfleet.errors import some
from merganser.flows.evidence.runs.diff import LineageDiff, RunDiff, value_in_words
from merganser.flows.steps.answer import worse_line
from merganser.report import formats
from merganser.report.templates import open_templates

if TYPE_CHECKING:
    from merganser.flows.evidence.runs.history import SavedPoint

_MOST = 5  # changes of a run in the history that a line names


def diff_lines(difference: RunDiff) -> Iterator[str]:
    """Return lines for the terminal with the differences between two runs."""
    yield f"{difference.first} -> {difference.second}"
    for title, changes in (("parameters", difference.parameters), ("commit, environment", difference.environment)):
        yield f"{title}: {'' if changes else 'the same'}".rstrip()
        yield from (f"  {name}: {value_in_words(a)} -> {value_in_words(b)}" for name, (a, b) in changes.items())
    yield f"code: {', '.join(difference.code) or 'the same'}"
    for run, names in difference.only.items():
        yield f"only in {run}: {', '.join(names)}"
    tests = "p of paired tests on the same examples, two-sided, Holm's correction over all lines"
    yield f"scores, times 100, means over the tasks of both runs; {tests}:"
    width = max((len(line.entry) + len(line.column) for line in difference.scores), default=0) + 1
    for line in difference.scores:
        p = "other examples" if line.p is None else f"p {formats.p_value(line.p)}"
        name = f"{line.entry}/{line.column}"
        values = f"{100 * line.first:6.2f} -> {100 * line.second:6.2f}  {formats.signed(line.difference):>7}"
        yield f"  {name:{width}}  {values}  {p}"


def lineage_diff_lines(difference: LineageDiff) -> Iterator[str]:
    """Return lines for the terminal with the differences between two lineages; those that reached the results first."""
    same = "" if difference.differs else ": the same bytes"
    yield f"{difference.first} -> {difference.second}, {some(difference.of)}{same}"
    for new, old in difference.renamed.items():
        yield f"entry {new} is compared with {old}: the same method and parameters under another name"
    for reached, title in ((True, "reached the result"), (False, "did not reach it: an output on the way is the same")):
        lines = difference.in_words(reached=reached)
        yield from (f"{title}:", *(f"  {line}" for line in lines)) if lines else ()
    if not difference.differences:
        yield "nothing else differs"


def history_lines(points: "list[SavedPoint]") -> Iterator[str]:
    """Return lines for the terminal with each run's changes, and each entry's last, first and best score."""
    for point in points:
        changes = "; ".join(point.changed[:_MOST]) or "none of the differences reached the results"
        more = f" and {len(point.changed) - _MOST} more" if len(point.changed) > _MOST else ""
        yield f"{point.saved[:16]}  {point.run}: {'the first run' if point is points[0] else changes + more}"
        for line in point.worse:
            yield f"  {worse_line(line.entry, line.column, line.first, line.second, line.p)}"
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


def by_entry(points: "list[SavedPoint]") -> "dict[str, list[tuple[SavedPoint, float]]]":
    """Return each entry's mean over the runs that have it."""
    entries = dict.fromkeys(entry for point in points for entry in point.scores)
    return {entry: [(each, each.scores[entry][0]) for each in points if entry in each.scores] for entry in entries}


def as_page(name: str, **content: Any) -> str:
    """Return the template of a page; it is in the report's folder of templates."""
    environment = open_templates("merganser.report")
    numbers = {"signed": formats.signed, "p_value": formats.p_value, "percent": formats.percent}
    environment.filters |= {"said": value_in_words, **numbers}
    return environment.get_template(f"{name}.html.j2").render(**content)
