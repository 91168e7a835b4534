"""Which one to use: for each budget the best entry, and those tied with it.

The whole report has one criterion: an entry is tied with the best if a paired test on the same examples finds no
difference: two-sided p of at least LEVEL, after Holm's correction for the entries compared with that best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from merganser.measures.scores import LEVEL
from merganser.measures.significance import Pairs, holm
from merganser.report.comparison import Comparison
from merganser.report.formats import BUDGETS, Budget, Tables
from merganser.report.paired import MEAN, pair_tables
from merganser.report.rows import Row, best, front, with_data
from merganser.report.sections import Section

NO_DATA, ANY_DATA = "none", "any"


@dataclass(frozen=True)
class Choice:
    """One budget: its best entry, and those tied with it, by descending mean."""

    budget: Budget
    data: str  # NO_DATA: entries that had the checkpoints alone; ANY_DATA: all entries
    entries: int  # how many fit
    more: bool  # whether some fit that the next smaller budget does not hold
    best: Row | None
    tied: Sequence[Row]
    p: Sequence[float]  # of those tied, corrected

    @cached_property
    def members(self) -> list[Row]:
        """List the best entry and those tied with it."""
        return [self.best, *self.tied] if self.best else []

    @property
    def smallest(self) -> Row | None:
        """Return the member that stores least per task, if that is less than the best one stores."""
        least = min(self.members, key=lambda row: row.amr, default=None)
        return least if least and self.best and least.amr < self.best.amr else None

    @property
    def fastest(self) -> Row | None:
        """Return the fastest member, if it is not the best one."""
        least = min(self.members, key=lambda row: row.seconds, default=None)
        return None if least is self.best else least


def choose(comparison: Comparison) -> list[Choice]:
    """Choose for each budget, by the tests of the entries' means."""
    return make_choices(comparison.rows, comparison.significance.pairs[MEAN])


def make_choices(rows: Sequence[Row], pairs: Pairs) -> list[Choice]:
    """Choose for each budget among the entries without data; if some used data, among all entries too.

    `pairs`: all pairs of rows, in their order, compared by their means over the tasks.
    """
    places = {row.entry: place for place, row in enumerate(rows)}
    merges = [row for row in rows if row.group != "reference"]
    without = [row for row in merges if row.data == "NDI"]
    compared = {NO_DATA: without, **({} if len(without) == len(merges) else {ANY_DATA: merges})}
    return [choice for data, entries in compared.items() for choice in _choices(data, entries, places, pairs)]


def _choices(data: str, rows: list[Row], places: dict[str, int], pairs: Pairs) -> list[Choice]:
    choices: list[Choice] = []
    for budget in BUDGETS:
        fitting = [row for row in rows if budget.holds(row.group == "single", row.amr)]
        leader = best(fitting)
        tied = _tied(leader, fitting, places, pairs) if leader else []
        more = len(fitting) > (choices[-1].entries if choices else 0)
        choices.append(Choice(budget, data, len(fitting), more, leader, [row for row, _ in tied], [p for _, p in tied]))
    return choices


def _tied(leader: Row, rows: list[Row], places: dict[str, int], pairs: Pairs) -> list[tuple[Row, float]]:
    """Return the rows tied with the best one, with their corrected p-values, by descending mean."""
    others = [row for row in rows if row is not leader]
    p = pairs.p[[places[row.entry] for row in others], places[leader.entry]] if others else np.empty(0)
    corrected = zip(others, holm(p).tolist(), strict=True)
    return sorted(((row, value) for row, value in corrected if value >= LEVEL), key=lambda each: -each[0].scores.mean)


def standings(choices: Sequence[Choice]) -> dict[str, list[tuple[Choice, bool]]]:
    """Return for each entry the choices that it belongs to, and whether as the best."""
    standings_of: dict[str, list[tuple[Choice, bool]]] = {}
    for choice in choices:
        for row in choice.members:
            standings_of.setdefault(row.entry, []).append((choice, row is choice.best))
    return standings_of


def ranks(rows: Sequence[Row], pairs: Pairs) -> dict[str, tuple[int, int]]:
    """Return each entry's range of ranks: 1 plus how many others are better, or are not worse.

    Each entry is tested against every other one, without references, with Holm's correction for their number.
    """
    places = [place for place, row in enumerate(rows) if row.group != "reference"]
    rank_of = {}
    for place in places:
        others = [other for other in places if other != place]
        differs = holm(pairs.p[place, others]) < LEVEL
        difference = pairs.difference[place, others]
        first = 1 + int(np.sum(differs & (difference < 0)))
        rank_of[rows[place].entry] = first, len(places) - int(np.sum(differs & (difference > 0)))
    return rank_of


def tables(comparison: Comparison) -> Tables:
    """Return for each budget the best entry, those tied with it, and the tests."""
    lines = [
        [c.budget.key, c.data, r.entry, c.entries, p, r.scores.mean, r.scores.error, r.amr, r.seconds]
        for c in comparison.of(choose)
        for r, p in zip(c.members, [None, *c.p], strict=False)
    ]
    header = ["budget", "data", "entry", "of", "p", "mean", "stderr", "amr", "seconds"]
    return {"choices.csv": (header, lines), **pair_tables(comparison.significance)}


def page(comparison: Comparison) -> dict[str, Any]:
    """Return the choices by budget, and each entry's range of ranks."""
    rows, choices = comparison.rows, comparison.of(choose)
    return {
        "with_data": with_data(rows),
        "budgets": {budget: [choice for choice in choices if choice.budget is budget] for budget in BUDGETS},
        "references": [row for row in rows if row.group == "reference"],
        "ranked": sorted(rows, key=lambda row: -row.scores.mean),
        "ranks": ranks(rows, comparison.significance.pairs[MEAN]),
        "standings": standings(choices),
        "front": {row.entry for row in front(rows, [row.amr for row in rows])},
    }


SECTION = Section(tables=tables, page=page)
