"""The table for a paper: what is bold, what is underlined, and that LaTeX can read it."""

import re

import pytest

from merganser.report.rows import latex_table

RESULTS = [
    {
        "entry": "base",
        "family": "references",
        "group": "reference",
        "data": "no data",
        "mean": "0.9",
        "a&b": "0.9",
        "c": "0.9",
    },
    {
        "entry": "ties_20%",
        "family": "sparse",
        "group": "single",
        "data": "no data",
        "mean": "0.5",
        "a&b": "0.7",
        "c": "0.3",
    },
    {
        "entry": "dare",
        "family": "sparse",
        "group": "single",
        "data": "no data",
        "mean": "0.4",
        "a&b": "0.65",
        "c": "-0.15",
    },
    {
        "entry": "ada",
        "family": "learned",
        "group": "single",
        "data": "validation data",
        "mean": "0.1",
        "a&b": "0.1",
        "c": "0.1",
    },
]
SCORES = [{"entry": line["entry"], "task": task, "stderr": "0.01"} for line in RESULTS for task in ("a&b", "c")]
VERDICTS = [
    {"entry": "dare", "column": "mean", "corrected": "0.01"},
    {"entry": "dare", "column": "a&b", "corrected": "0.2"},
    {"entry": "dare", "column": "c", "corrected": "0.001"},
]
MORE = {"normalised_score": "", "amr": "0", "stderr": "0.02"}


def lines(errors: bool) -> list[str]:
    return latex_table([line | MORE for line in RESULTS], VERDICTS, SCORES, errors=errors).splitlines()


def test_the_best_of_a_kind_is_bold_and_what_is_within_its_error_underlined() -> None:
    assert [line for line in lines(False) if "&" in line][1:] == [
        r"base & 90.0 & -- & 0 & 90.0 & 90.0 \\",
        r"ties\_20\% & \textbf{50.0} & -- & 0 & \textbf{70.0} & \textbf{30.0} \\",
        r"dare & 40.0 & -- & 0 & \underline{65.0} & $-$15.0 \\",
        r"ada\textsuperscript{V} & \textbf{10.0} & -- & 0 & \textbf{10.0} & \textbf{10.0} \\",
    ]


def test_means_that_differ_by_rounding_alone_are_both_bold() -> None:
    equal = {"ties_20%": repr(0.1 + 0.2 + 0.3), "dare": repr(0.3 + 0.2 + 0.1)}
    assert len(set(equal.values())) == 2
    results = [line | MORE | {"mean": equal.get(line["entry"], line["mean"])} for line in RESULTS]
    table = latex_table(results, [], SCORES, errors=False)
    assert table.count(r"\textbf{60.0}") == 2


@pytest.mark.parametrize("errors", [False, True])
def test_every_row_has_the_columns_that_are_declared_and_nothing_is_left_unescaped(errors: bool) -> None:
    table = [line for line in lines(errors) if not line.startswith("%")]
    columns = len(re.findall(r"[lr]", re.sub(r".*\{(\w+)\}$", r"\1", table[0])))
    assert table[0] == rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}"
    assert (table[1], table[-2:]) == (r"\toprule", [r"\bottomrule", r"\end{tabular}"])
    for line in table[2:-2]:
        if line != r"\midrule":
            assert line.endswith(r" \\")
            spans = re.findall(r"\\multicolumn\{(\d+)\}", line)
            assert (int(spans[0]) if spans else 1 + len(re.findall(r"(?<!\\)&", line))) == columns
        plain = line.replace(r"$-$", "").replace(r"$\pm$", "").replace(r"{\scriptsize", "{")
        assert not re.search(r"(?<!\\)[_%#$^~]", plain)
        assert line.count("{") == line.count("}")
    assert [line for line in table if "emph" in line] == [
        rf"\multicolumn{{{columns}}}{{l}}{{\emph{{{family}}}}} \\" for family in ("References", "Sparse", "Learned")
    ]


def test_errors_stand_beside_their_numbers_where_they_are_asked_for() -> None:
    assert r"dare & 40.0 {\scriptsize $\pm$ 2.0} & -- & 0 & \underline{65.0} {\scriptsize $\pm$ 1.0}" in "\n".join(
        lines(True)
    )
    assert "pm" not in "\n".join(lines(False))
