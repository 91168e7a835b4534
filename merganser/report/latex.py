"""The report's table for a paper, in LaTeX with booktabs: families as groups, best bold, within its error underlined.

It is made of the report's own tables, `results.csv`, `significance.csv` and `plots/scores.csv`: a dictionary a line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from merganser.config.data_class import TITLES
from merganser.measures.significance import LEVEL
from merganser.report.formats import memory, percent, sentence

Line = Mapping[str, str]
Cell = tuple[str, str]  # of an entry, in a column: a task or MEAN
MEAN = "mean"
BEST, TIED = r"\textbf{%s}", r"\underline{%s}"
MARKS = {TITLES["VDI"]: "V", TITLES["TTA"]: "T"}
ABOUT = r"""% Needs \usepackage{booktabs}. Per cent, or the task's own metric times 100.
% Bold: the best of its kind in the column (one model; parts per task; entries with data apart).
% Underlined: within the error of it, by paired tests with Holm's correction.
% V: had validation data. T: adapted on examples without labels."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex_table(results: Sequence[Line], verdicts: Sequence[Line], scores: Sequence[Line], *, errors: bool) -> str:
    """Return the table: a line an entry in the order of `results`, with `errors` each number ± its sampling error."""
    columns = [MEAN, *dict.fromkeys(line["task"] for line in scores)]
    styles = _styles(results, verdicts, columns)
    error = {(line["entry"], line["task"]): line["stderr"] for line in scores} if errors else {}
    error |= {(line["entry"], MEAN): line["stderr"] for line in results} if errors else {}
    heads = ["entry", "mean", "of individual", "memory per task", *columns[1:]]
    lines = [ABOUT, rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule", _row(map(escaped, heads))]
    for family, members in groupby(results, key=lambda line: line["family"]):
        lines += [r"\midrule", rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{{escaped(sentence(family))}}}}} \\"]
        lines += [_row(_cells(line, columns, styles, error)) for line in members]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _styles(results: Sequence[Line], verdicts: Sequence[Line], columns: Sequence[str]) -> dict[Cell, str]:
    """Return how the best of each kind and those within the error of it are written."""
    found = {(v["entry"], v["column"]): TIED for v in verdicts if float(v["corrected"]) >= LEVEL}
    merges = [line for line in results if line["group"] != "reference"]
    kinds = {line["entry"]: (line["group"], line["data"] != TITLES["NDI"]) for line in merges}
    for kind in dict.fromkeys(kinds.values()):
        members = [line for line in merges if kinds[line["entry"]] == kind]
        for column in columns:
            most = max(float(line[column]) for line in members)
            found |= {(line["entry"], column): BEST for line in members if float(line[column]) == most}
    return found


def _cells(line: Line, columns: Sequence[str], styles: Mapping[Cell, str], error: Mapping[Cell, str]) -> Iterator[str]:
    mark = next((mark for title, mark in MARKS.items() if line["data"].startswith(title)), "")
    yield escaped(line["entry"]) + (rf"\textsuperscript{{{mark}}}" if mark else "")
    numbers = []
    for column in columns:
        found = error.get((line["entry"], column))
        number = styles.get((line["entry"], column), "%s") % _number(float(line[column]))
        numbers.append(number + (rf" {{\scriptsize $\pm$ {percent(float(found))}}}" if found else ""))
    relative = line["normalised_score"]
    yield from [numbers[0], percent(float(relative)) if relative else "--", memory(float(line["amr"])), *numbers[1:]]


def _number(value: float) -> str:
    return percent(value).replace("-", "$-$")


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    r"""Write text so that LaTeX prints it as it is.

    >>> escaped("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return "".join(SPECIAL.get(sign, sign) for sign in text)
