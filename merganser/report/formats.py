"""Formats of the report: numbers, names, CSV and Parquet tables, MathML, the order of layers, and memory budgets."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from latex2mathml.converter import convert
from markupsafe import Markup, escape

from merganser.evaluation.metrics import METRICS


def sentence(words: str) -> str:
    """Capitalise the first letter."""
    return words[:1].upper() + words[1:]


def breakable(name: str) -> Markup:
    """Allow a line break after each underscore of a name.

    >>> breakable("a_b<")
    Markup('a_<wbr>b&lt;')
    """
    return Markup(escape(name).replace("_", Markup("_<wbr>")))


def coded(text: str) -> Markup:
    """Mark text between backticks as code.

    >>> coded("by `k` < 2")
    Markup('by <code>k</code> &lt; 2')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def written(value: Any) -> str:
    """Return a parameter's value as params.yaml has it."""
    return value if isinstance(value, str) else json.dumps(value)


def settings(values: Mapping[str, Any]) -> str:
    """Return parameters with their values on one line.

    >>> settings({"elect": False, "averaging": "simple"})
    'elect: false, averaging: simple'
    """
    return ", ".join(f"{name}: {written(value)}" for name, value in values.items())


def percent(value: float | None, digits: int = 1) -> str:
    """Format a fraction in per cent; a dash for None."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def memory(rate: float) -> str:
    """Format an additional memory rate in per cent, with enough digits to tell small ones apart.

    >>> memory(0), memory(0.0089), memory(0.139), memory(1)
    ('0', '0.89', '13.9', '100.0')
    """
    return percent(rate, 1 if rate >= 0.1 else 2) if rate else "0"


def signed(value: float | None) -> str:
    """Format a difference of fractions in per cent with its sign; a dash for None."""
    return "–" if value is None else f"{100 * value:+.2f}"


def digits(value: float) -> str:
    """Format a measure with three significant digits; a dash for None."""
    return "–" if isnan(value) else f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def correlation(value: float) -> str:
    """Format a correlation with its sign; a dash for NaN.

    >>> correlation(0.5), correlation(float("nan"))
    ('+0.50', '–')
    """
    return "–" if isnan(value) else f"{value:+.2f}"


def interval(estimate: Any) -> str:
    """Format the interval of a correlation; a dash for None."""
    return "–" if isnan(estimate.low) else f"{correlation(estimate.low)} to {correlation(estimate.high)}"


def p_value(value: float | None) -> str:
    """Format a p-value with enough digits to compare it with 0.05; a dash for None.

    >>> p_value(0.0125), p_value(0.0497), p_value(2e-5), p_value(0.0)
    ('0.013', '0.0497', '2e-05', '<1e-99')
    """
    if value is None:
        return "–"
    if f"{value:.3f}" == "0.050":  # which side of 5 % it is on
        return f"{value:.4f}"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}" if value >= 1e-99 else "<1e-99"


def seconds(value: float) -> str:
    """Format a time with three significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def megabytes(value: float) -> str:
    """Format a size in MiB."""
    return f"{value / 2**20:.0f}"


class Wording(NamedTuple):
    """The name and unit of all tasks' scores."""

    name: str
    unit: str

    @property
    def axis(self) -> str:
        """Return the label of an axis of scores."""
        return f"{self.name}, {self.unit}"


def wording_of(metrics: Iterable[str]) -> Wording:
    """Return the name and unit of the scores of tasks with these metrics; all are shown times 100, shares in per cent.

    >>> wording_of(["accuracy", "accuracy"])
    Wording(name='accuracy', unit='%')
    >>> wording_of(["accuracy", "matthews"]).axis
    'score, × 100'
    """
    known = list(dict.fromkeys(metrics))
    shares = all(metric in METRICS and METRICS[metric].is_share for metric in known)
    return Wording(title_of(known[0]) if len(known) == 1 else "score", "%" if shares else "× 100")


def title_of(metric: str) -> str:
    """Return a metric's name as prose has it."""
    return METRICS[metric].title if metric in METRICS else metric


Table = tuple[Sequence[str], Iterable[Sequence[Any]]]  # a header, and lines
PARQUET = ".parquet"
Tables = Mapping[str, Table | str]  # by their files' names; text of another form as it is


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table; None and NaN become empty cells, and no text is a formula."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_cell(value) for value in line] for line in lines)


def _cell(value: Any) -> Any:
    """Return a cell's text; a spreadsheet would run text that begins like a formula, such as a class name.

    >>> _cell("=HYPERLINK()"), _cell("-1"), _cell("a-b")
    ("'=HYPERLINK()", '-1', 'a-b')
    """
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(value):
        return f"'{value}"
    return None if isinstance(value, float) and isnan(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_parquet(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table as Apache Parquet with one type per column; None is a missing value."""
    import pyarrow
    from pyarrow import parquet

    rows = list(lines)
    columns = [[row[place] for row in rows] for place in range(len(header))]
    parquet.write_table(pyarrow.table(columns, names=list(header)), path, compression="zstd")


def write_tables(folder: Path, tables: Tables) -> None:
    """Write tables into a folder, as CSV or Parquet by the suffix of their names, and texts."""
    for name, table in tables.items():
        if isinstance(table, str):
            (folder / name).write_text(table, encoding="utf-8")
        else:
            (write_parquet if name.endswith(PARQUET) else write_csv)(folder / name, *table)


def study_tables(studies: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Return each study of `studies.json` as `columns` and `data`, a row per point, by the name `KIND.NAME`."""
    tables = {}
    for kind, content in studies.items():
        named = content.items() if isinstance(content, dict) else [("", content)]
        for name, rows in named:
            if isinstance(rows, list) and rows:
                columns = [key for key, value in rows[0].items() if not isinstance(value, dict | list)]
                data = [[row[column] for column in columns] for row in rows]
                tables[f"{kind}.{name}".rstrip(".")] = {"columns": columns, "data": data}
    return tables


NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # HTML needs none, and the page has no addresses
# browsers have no double-struck digits but the characters themselves
INDICATOR = re.compile(r'<mn mathvariant="double-struck">1</mn>')


@cache
def mathml(latex: str) -> Markup:
    """Convert a LaTeX formula to MathML, one element per clause, so that a long formula can break between clauses.

    The first element's `alttext` is the whole formula in LaTeX.

    >>> mathml("x < 1, \\\\quad y").count("<math ")
    2
    """
    drawn = [INDICATOR.sub("<mn>\U0001d7d9</mn>", _drawn(clause)) for clause in clauses(latex)]
    first = drawn[0].replace("<math ", f'<math alttext="{escape(latex)}" ', 1)
    return Markup("".join([first, *drawn[1:]]))


def clauses(latex: str) -> list[str]:
    """Split a formula after the commas before a wide space, outside of braces.

    >>> clauses("a, \\\\quad b_{c, \\\\quad d}")
    ['a,', 'b_{c, \\\\quad d}']
    """
    parts, depth = [""], 0
    for piece in re.split(r"(,\s*\\quad\s|\\begin\{|\\end\{|\\[{}]|[{}])", latex):
        depth += {"{": 1, "}": -1, "\\begin{": 2, "\\end{": 0}.get(piece, 0)
        if piece.startswith(",") and piece.rstrip().endswith("quad") and not depth:
            parts[-1] += ","
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def _drawn(latex: str) -> str:
    try:
        return convert(latex, display="block").replace(NAMESPACE, "", 1)
    except Exception:  # of no common class: the formula of somebody's own method is shown as it was written
        return f"<code>{escape(latex)}</code>"


NUMBER = re.compile(r"\d+")
ANY = "*"  # in the place of a number
ONCE = "others"


class Panel(NamedTuple):
    """The layers of one kind in the order of their depth, with tick labels."""

    title: str
    layers: list[str]
    ticks: list[str]


def by_depth(names: Iterable[str]) -> list[str]:
    """Sort parameters by name, with numbers in names by value: block 2 before block 10.

    >>> by_depth(["blocks.10.proj", "blocks.2\u00b2.proj", "blocks.2.proj"])
    ['blocks.2.proj', 'blocks.2\u00b2.proj', 'blocks.10.proj']
    """
    return sorted(names, key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", name)])


def short_names(names: Sequence[str]) -> list[str]:
    """Remove leading words that all parameters share, and a final `weight`."""
    words = [name.split(".") for name in names]
    shared = 0
    while all(len(w) > shared + 1 for w in words) and len({w[shared] for w in words}) == 1:
        shared += 1
    return [".".join(w[shared:]).removesuffix(".weight").replace("transformer.resblocks", "block") for w in words]


def panels(names: Sequence[str]) -> list[Panel]:
    """Group layers whose names differ only in numbers into one panel each, and all others into a last one."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, short in zip(names, short_names(names), strict=True):
        kinds.setdefault(NUMBER.sub(ANY, short), []).append((name, short))
    alone = [members[0] for members in kinds.values() if len(members) == 1]
    main = [
        Panel(
            kind.rsplit(f"{ANY}.", 1)[-1],
            [name for name, _ in members],
            [".".join(NUMBER.findall(short)) for _, short in members],
        )
        for kind, members in kinds.items()
        if len(members) > 1
    ]
    others = [Panel(ONCE, [name for name, _ in alone], [short for _, short in alone])] if alone else []
    return main + others


@dataclass(frozen=True)
class Budget:
    """The entries that store at most this much per task, as a share of the merged parameters' bytes."""

    key: str
    title: str
    short: str
    most: float | None  # None: any size; 0: a task keeps nothing of its own

    def holds(self, one_model: bool, amr: float) -> bool:
        """Tell whether an entry fits, by its kind and its additional memory rate."""
        return one_model or self.most is None or amr <= self.most > 0


BUDGETS = (
    Budget("one_model", "one model for all tasks", "one model", most=0),
    Budget("1_percent", "at most 1 % more per task", "≤ 1 %", most=0.01),
    Budget("5_percent", "at most 5 % more per task", "≤ 5 %", most=0.05),
    Budget("any_size", "any size", "any size", most=None),
)
