"""Papers' figures next to measured ones: each difference, and whether it exceeds the sampling error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import NormalDist

from merganser.config.published import (
    DROP_RATE,
    MATRICES,
    MEAN,
    MEMORY,
    NORMALISED,
    READS,
    SUMMARIES,
    UNSEEN,
    Published,
    Table,
    stands_beside,
)
from merganser.measures.scores import LEVEL
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.formats import Tables
from merganser.report.rows import Row
from merganser.report.sections import Section

ERRORS = NormalDist().inv_cdf(1 - LEVEL / 2)  # so many standard errors hold 95 % of what other examples would give


@dataclass(frozen=True)
class Figure:
    """One number of an entry, measured and published: fractions; `rounding`: half of the last printed digit."""

    ours: float
    theirs: float
    stderr: float | None
    rounding: float

    @property
    def difference(self) -> float:
        """Return by how much ours is higher."""
        return self.ours - self.theirs

    @property
    def beyond(self) -> bool | None:
        """Tell whether they differ by more than our sampling error and their rounding; None where it is not known."""
        return None if self.stderr is None else abs(self.difference) > ERRORS * self.stderr + self.rounding


@dataclass(frozen=True)
class Reproduced:
    """A published table, with the figures for entries and columns of this comparison."""

    table: Table
    columns: list[str]
    figures: Mapping[str, Mapping[str, Figure]]  # by entry and column
    notes: Mapping[str, str]  # by entry

    @property
    def compared(self) -> list[Figure]:
        """Return all its figures."""
        return [figure for row in self.figures.values() for figure in row.values()]

    @property
    def judged(self) -> int:
        """Count the figures with a known sampling error: not those derived from the mean, and not bytes."""
        return sum(figure.beyond is not None for figure in self.compared)

    @property
    def beyond(self) -> int:
        """Count the figures that differ by more than our sampling error."""
        return sum(figure.beyond is True for figure in self.compared)


def read(comparison: Comparison) -> list[Reproduced] | None:
    """Compare the entries with papers' figures; None if params.yaml names no file of them."""
    params = comparison.params
    if not params.published:
        return None
    published = Published.model_validate(read_json(comparison.paths.PUBLISHED))
    return reproduce(published, comparison.rows, comparison.tasks, params.parameters.matrices)


def reproduce(
    published: Published, rows: Sequence[Row], tasks: Sequence[str], matrices: str = "linear"
) -> list[Reproduced]:
    """Compare entries with papers' figures; tables without a figure for them are left out.

    Means are compared if the tasks, seen or unseen, are the same; a row belongs to an entry with its input.
    `matrices`: which parameters count as matrices here.
    """
    unseen = list(rows[0].scores.unseen) if rows else []
    known = [*tasks, *unseen, *(SUMMARIES if set(tasks) == set(published.tasks) else [])]
    known += [UNSEEN] if unseen and set(unseen) == set(published.unseen) else []
    reproduced = [
        _reproduced(table, rows, [name for name in table.columns if name in known], matrices)
        for table in published.tables
    ]
    return [each for each in reproduced if each.compared]


def _reproduced(table: Table, rows: Sequence[Row], columns: list[str], matrices: str) -> Reproduced:
    shared = [
        row for row in rows if row.entry in table.rows and stands_beside(table.parameters.get(row.entry, {}), row.reads)
    ]
    figures = {row.entry: _figures(table, row, columns) for row in shared}
    notes = {row.entry: _note(table, row, matrices) for row in shared}
    return Reproduced(
        table,
        columns,
        {entry: row for entry, row in figures.items() if row},
        {entry: note for entry, note in notes.items() if note},
    )


def _figures(table: Table, row: Row, columns: list[str]) -> dict[str, Figure]:
    theirs = dict(zip(table.columns, table.rows[row.entry], strict=True))
    rounding = 0.5 * 10.0 ** -(table.decimals + 2)
    return {
        column: Figure(ours, value / 100, stderr, rounding)
        for column in columns
        for ours, stderr in [_measured(row, column)]
        if ours is not None and (value := theirs[column]) is not None
    }


def _measured(row: Row, column: str) -> tuple[float | None, float | None]:
    """Return an entry's score on a task or over all, and its standard error; None if it is not known."""
    if column == MEAN:
        return row.scores.mean, row.scores.error
    if column == NORMALISED:
        return row.scores.normalised, row.scores.normalised_error
    if column == DROP_RATE:
        return row.scores.drop_rate, None
    if column == MEMORY:
        return row.amr, None
    if column == UNSEEN:
        return row.scores.unseen_mean, row.scores.unseen_error
    score = {**row.scores.by_task, **row.scores.unseen}[column]
    return score["value"], score["stderr"]


def _note(table: Table, row: Row, matrices: str) -> str:
    """Return why an entry's experiment differs from the paper's."""
    ours = {READS: row.reads, MATRICES: matrices, **row.values}
    theirs = table.parameters.get(row.entry, {})
    here = {name: f"{name} {'by default' if ours.get(name) is None else ours[name]}" for name in theirs}
    said = [
        f"{here[name]} here, {value} there"
        for name, value in theirs.items()
        if value is not None and ours.get(name) != value
    ]
    if unstated := [here[name] for name, value in theirs.items() if value is None]:
        said.append(f"{', '.join(unstated)} here, not stated there")
    return "; ".join([*said, *([table.notes[row.entry]] if row.entry in table.notes else [])])


def tables(reproduced: Sequence[Reproduced]) -> Tables:
    """Return papers' figures next to measured ones."""
    about, numbers = ("paper", "table", "protocol", "checkpoints"), ("difference", "stderr", "beyond")
    of_table, of_figure = attrgetter(*about), attrgetter("ours", "theirs", *numbers)
    lines = [
        [*of_table(each.table), entry, column, *of_figure(figure), each.notes.get(entry)]
        for each in reproduced
        for entry, row in each.figures.items()
        for column, figure in row.items()
    ]
    return {"published.csv": ([*about, "entry", "column", "ours", "published", *numbers, "note"], lines)}


SECTION = Section(read=read, tables=tables, page=lambda reproduced: {} if reproduced else None)
