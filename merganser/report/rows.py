"""The rows of the result table, by family with the best first; and the report's own tables as one in LaTeX."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from math import floor
from pathlib import Path
from typing import Any, get_args

from merganser import registry
from merganser.config.params import Params
from merganser.config.points import Points
from merganser.config.sections import Entry
from merganser.config.tasks import TITLES, data_class, is_transductive
from merganser.hashes import sha256_of
from merganser.measures.scores import LEVEL, rank_value
from merganser.merging.about import Family, Involvement
from merganser.merging.method import Method
from merganser.outputs import read_json
from merganser.report.formats import Wording, memory, percent, sentence, wording_of
from merganser.report.scores import Scores, written_values

REFERENCES = ("base", "individual")
WITH_DATA = "+data"
Cell = tuple[str, str]  # of an entry, in a column: a task or MEAN
MEAN = "mean"
# in the order they are shown
GROUPS = {
    "reference": "References",
    "single": "One model for all tasks",
    "parts": "One shared model and a part per task",
}


@dataclass(frozen=True)
class Row:
    """One entry: its scores, its parameters, and the origin of each number."""

    entry: str
    about: Method
    reads: str
    group: str  # a key of GROUPS
    scores: Scores
    values: Mapping[str, Any]  # the method's parameters, defaults filled in
    declared: Mapping[str, Any]  # those that params.yaml gives
    files: Mapping[str, Path]  # the metrics file of each task
    hashes: Mapping[str, str]  # and its sha256
    receipt: Mapping[str, str]
    data: Involvement = "NDI"  # what the entry had beside the checkpoints
    transductive: bool = False  # adapted on the examples that it is measured on
    before_s: float | None = None  # wall time of what was measured, learned, searched or trained for it
    spent: Mapping[str, int] = field(default_factory=dict)  # examples that went through a network for that

    @property
    def needs(self) -> list[str]:
        """List the inputs of the merge; `statistics/NAME` are of the first kind that the method needs."""
        section, *name = self.reads.split("/")
        named = {section, *name, *(self.about.statistics[:1] if section == "statistics" else ())}
        return [self.reads, *(need for need in self.about.needs[1:] if need not in named)]

    @property
    def league(self) -> str:
        """Return the entries to compare with: those of its group that also had data, or also had none."""
        return f"{self.group}{WITH_DATA if self.data != 'NDI' else ''}"

    @property
    def data_title(self) -> str:
        """Return the name of its data class."""
        return TITLES[self.data] + (", transductive" if self.transductive else "")

    @property
    def wording(self) -> Wording:
        """Return what the scores are called."""
        return wording_of(self.scores.metrics.values())

    @property
    def amr(self) -> float:
        """Return the additional memory rate, bytes kept per task over those of the merged parameters."""
        return float(self.scores.profile["amr"])

    @property
    def seconds(self) -> float:
        """Return the wall time of the merge and of the work on data for it."""
        return float(self.scores.profile["wall_s"]) + (self.before_s or 0)

    @property
    def measures(self) -> dict[str, float | None]:
        """Return its numbers over all tasks, by their names in the tables."""
        return {
            "mean": self.scores.mean,
            "normalised_score": self.scores.normalised,
            "score_drop_rate": self.scores.drop_rate,
            "amr": self.amr,
            **{name: self.scores.profile[name] for name in ("wall_s", "peak_rss_bytes")},
        }


def make_rows(params: Params, scores: Mapping[str, Scores], metrics: Path, records: Path, profiles: Path) -> list[Row]:
    """Join scores, parameters and receipts: references, then each family by descending mean score."""
    rows = [_row(params, entry, scores, metrics, records, profiles) for entry in scores]
    families = get_args(Family)
    return sorted(rows, key=lambda row: (families.index(row.about.family), -row.scores.mean))


def _row(params: Params, entry: str, every: Mapping[str, Scores], metrics: Path, records: Path, profiles: Path) -> Row:
    declared, scores = params.methods[entry], every[entry]
    method, written = registry.get(declared.method), written_values(declared, scores.profile)
    files = {task: metrics / entry / f"{task}.json" for task in params.measured}
    return Row(
        entry=entry,
        about=method,
        reads=declared.reads,
        group="reference" if method.name in REFERENCES else "single" if method.one_model else "parts",
        scores=scores,
        values=method.validate(f"methods.{entry}", written),
        declared=written,
        files=files,
        hashes={task: sha256_of(file) for task, file in files.items()},
        receipt=read_json(records / f"{entry}.json"),
        data=data_class(params, declared),
        transductive=is_transductive(params, declared),
        before_s=seconds_before(params, declared, profiles),
        spent={word: spent_before(params, entry, every, word) for word in ("forwards", "backwards")},
    )


def spent_before(params: Params, entry: str, scores: Mapping[str, Scores], word: str) -> int:
    """Count the examples that went forward or backward through a network before an entry's merge."""
    read = [each.get(word, 0) for each in scores[entry].profile.values() if isinstance(each, Mapping)]
    before = params.merged_before(params.methods[entry])
    return sum(read) + (spent_before(params, before, scores, word) if before else 0)


def seconds_before(params: Params, entry: Entry, profiles: Path) -> float | None:
    """Add up the seconds of measuring, learning, searching or training an entry's input on data."""
    seconds = [float(read_json(file)["wall_s"]) for file in times_before(params, entry, profiles)]
    return sum(seconds) if seconds else None


def times_before(params: Params, entry: Entry, profiles: Path) -> list[Path]:
    """List the files with these seconds, also for the merge that difference vectors start from."""
    times = [profiles / f"{entry.reads}.json", *(profiles / entry.reads / f"{task}.json" for task in params.tasks)]
    if search := entry.named("searches"):  # which relates its candidates to the tasks' own models
        points = Points(params)
        times += [profiles / point.profile for point in (points.individual, *points.search(search))]
    before = params.merged_before(entry)
    earlier = times_before(params, params.methods[before], profiles) if before else []
    return [*(file for file in times if file.is_file()), *earlier]


def leagues(rows: Iterable[Row]) -> list[str]:
    """List the leagues in the order of the groups, those without data first; references are in none."""
    present = {row.league for row in rows}
    names = [f"{group}{data}" for group in GROUPS for data in ("", WITH_DATA) if group != "reference"]
    return [name for name in names if name in present]


def in_league(rows: Iterable[Row], league: str) -> list[Row]:
    """Return the rows of a league, in their order."""
    return [row for row in rows if row.league == league]


def in_group(rows: list[Row], group: str) -> list[Row]:
    """Return a group's rows, in their order."""
    return [row for row in rows if row.group == group]


def by_family(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of each family, in their order."""
    present = dict.fromkeys(row.about.family for row in rows)
    return {family: [row for row in rows if row.about.family == family] for family in present}


def best(rows: list[Row]) -> Row | None:
    """Return the row with the highest mean score; the first one if several tie."""
    return max(rows, key=lambda row: rank_value(row.scores.mean), default=None)


def front(rows: Sequence[Row], costs: Sequence[float]) -> list[Row]:
    """Return the Pareto front by ascending cost: entries, without references, that none equals or beats for less."""
    on_front, last = list[Row](), (float("-inf"), float("nan"))
    ranked = [(rank_value(row.scores.mean), cost, row) for row, cost in zip(rows, costs, strict=True)]
    for score, cost, row in sorted(ranked, key=lambda each: (each[1], -each[0])):
        if row.group != "reference" and (score > last[0] or (score, cost) == last):
            on_front.append(row)
            last = score, cost
    return on_front


def best_cells(rows: Sequence[Row], tasks: Sequence[str]) -> set[Cell]:
    """Return the cells with the highest value of their league in a column, all of them if several tie."""
    cells = set[Cell]()
    for league, column in product(leagues(rows), (MEAN, *tasks)):
        members = [(row.entry, row.scores) for row in in_league(rows, league)]
        values = {entry: of.mean if column == MEAN else of.values[column] for entry, of in members}
        cells |= {(entry, column) for entry in highest(values)}
    return cells


def highest(values: Mapping[str, float]) -> list[str]:
    """List the entries with the highest value; equal means tie, however they were summed.

    >>> highest({"a": 0.1 + 0.2 + 0.3, "b": 0.3 + 0.2 + 0.1, "c": 0.5})
    ['a', 'b']
    """
    most = max(map(rank_value, values.values()))
    return [entry for entry, value in values.items() if rank_value(value) == most]


def lowest(rows: list[Row]) -> float:
    """Return the lower end of a score axis, in hundredths: 0, or ten below the lowest value if that is negative."""
    least = min(value for row in rows for value in row.scores.values.values())
    return 10.0 * min(0, floor(10 * least))


def with_data(rows: list[Row]) -> list[Row]:
    """Return the rows of entries that used data besides the checkpoints."""
    return [row for row in rows if row.data != "NDI"]


def sampling_error(rows: list[Row]) -> float | None:
    """Return the largest standard error of any entry's mean score; None if none is known."""
    return max((row.scores.error for row in rows if row.scores.error is not None), default=None)


Line = Mapping[str, str]
BEST, TIED = r"\textbf{%s}", r"\underline{%s}"
MARKS = {TITLES["VDI"]: "V", TITLES["TTA"]: "T"}
ABOUT = r"""% Needs \usepackage{booktabs}. Per cent, or the task's own metric times 100.
% Bold: best of its kind in the column (one model; parts per task; entries that used data separately).
% Underlined: tied for best, by paired tests with Holm's correction.
% V: used validation data. T: adapted on examples without labels."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex_table(results: Sequence[Line], verdicts: Sequence[Line], scores: Sequence[Line], *, errors: bool) -> str:
    """Return the table: a line per entry in the order of `results`; with `errors`, each number ± its sampling error."""
    columns = [MEAN, *dict.fromkeys(line["task"] for line in scores)]
    styles = _styles(results, verdicts, columns)
    error = {(line["entry"], line["task"]): line["stderr"] for line in scores} if errors else {}
    error |= {(line["entry"], MEAN): line["stderr"] for line in results} if errors else {}
    heads = ["entry", "mean", "of individual", "memory per task", *columns[1:]]
    lines = [ABOUT, rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule", _tex_row(map(escaped, heads))]
    for family, members in groupby(results, key=lambda line: line["family"]):
        lines += [r"\midrule", rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{{escaped(sentence(family))}}}}} \\"]
        lines += [_tex_row(_cells(line, columns, styles, error)) for line in members]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _styles(results: Sequence[Line], verdicts: Sequence[Line], columns: Sequence[str]) -> dict[Cell, str]:
    """Return the styles of the best of each league and of those within its error."""
    styles = {(v["entry"], v["column"]): TIED for v in verdicts if float(v["corrected"]) >= LEVEL}
    merges = [line for line in results if line["group"] != "reference"]
    kinds = {line["entry"]: (line["group"], line["data"] != TITLES["NDI"]) for line in merges}
    for kind in dict.fromkeys(kinds.values()):
        members = [line for line in merges if kinds[line["entry"]] == kind]
        for column in columns:
            best_entries = highest({line["entry"]: float(line[column]) for line in members})
            styles |= {(entry, column): BEST for entry in best_entries}
    return styles


def _cells(line: Line, columns: Sequence[str], styles: Mapping[Cell, str], error: Mapping[Cell, str]) -> Iterator[str]:
    mark = next((mark for title, mark in MARKS.items() if line["data"].startswith(title)), "")
    yield escaped(line["entry"]) + (rf"\textsuperscript{{{mark}}}" if mark else "")
    numbers = []
    for column in columns:
        stderr = error.get((line["entry"], column))
        number = styles.get((line["entry"], column), "%s") % _number(float(line[column]))
        numbers.append(number + (rf" {{\scriptsize $\pm$ {percent(float(stderr))}}}" if stderr else ""))
    relative = line["normalised_score"]
    yield from [numbers[0], percent(float(relative)) if relative else "--", memory(float(line["amr"])), *numbers[1:]]


def _number(value: float) -> str:
    return percent(value).replace("-", "$-$")


def _tex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> escaped("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return "".join(SPECIAL.get(sign, sign) for sign in text)
