"""The docs' figures are those of a run's file."""

import csv
import re

import pytest

from tools.figures import ROOT, pages, quotable, read_figures, with_figures, with_tables

RUN = """entry,method,group,data,digits,mean,normalised_score,amr
low,ties,single,no data,0.25,0.5,0.751,0.0
base,base,reference,no data,0.125,0.25,0.5,0.0
individual,individual,reference,no data,0.9,0.9,1.0,1.0
ada,adamerging,single,"test-time adaptation, transductive",0.5,0.5,0.5,0.0
"""
PAGE = """
## One model for all tasks

| entry | digits | mean, % | of individual, % | memory, % |
|---|---|---|---|---|
| `old` | 1.0 | 2.0 | 3.0 | 4.0 |

## One model for all tasks, from data

| entry | data | mean, % |
|---|---|---|
| `old` | unlabelled | 2.0 |
"""


def test_tables_are_those_of_a_runs_file_the_lowest_mean_first() -> None:
    written = with_tables(PAGE, list(csv.DictReader(RUN.splitlines())))
    assert "old" not in written
    assert "| `base` | 12.5 | 25.0 | 50.0 | 0.0 |\n| `low` | 25.0 | 50.0 | 75.1 | 0.0 |\n\n##" in written
    assert "| `ada` | unlabelled | 50.0 |" in written
    assert read_figures(written)["low"] == {"mean": 50.0, "individual": 75.1, "memory": 0.0}


def test_quoted_figures_follow_the_tables_with_the_digits_they_had() -> None:
    known = {"ties": {"mean": 65.24, "individual": 72.8}}
    table = "| example | s | mean, % |\n|---|---|---|\n| `ties` | 6 | 1.00 |\n| x | 1 | 2 |\n"
    page = f"kept 81 %<!-- ties individual -->\n\n{table}"
    assert with_figures(page, known) == page.replace("81 %", "73 %").replace("1.00", "65.24")
    with pytest.raises(KeyError):
        with_figures("1<!-- teis mean -->", known)


def test_the_docs_quote_docs_results() -> None:
    known = quotable()
    assert len(known) > 50
    assert [page.name for page in pages() if with_figures(page.read_text(), known) != page.read_text()] == []


def test_no_share_of_which_method_is_written_by_hand() -> None:
    text = (ROOT / "docs/which-method.md").read_text()
    assert re.findall(r"\d+(?:\.\d+)? %(?!<!-- [\w.-]+ \w+ -->)", text) == []
