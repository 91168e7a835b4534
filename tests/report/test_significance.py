"""The numbers that the report makes of the studies."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import t

from merganser.config.sections import Studies
from merganser.limits import read_yaml
from merganser.report.comparison import Comparison
from merganser.report.sections import sections, studies
from merganser.report.sections.study_tasks import SubsetScore, paired_p_value, summarise
from merganser.tasks import stages

DRM = Path("published/drm.yaml")


def points(entry: str, values: list[float], size: int = 2, normalised: bool = False) -> list[SubsetScore]:
    """Make one entry's results on subsets 0, 1, ... of one size."""
    subsets = [tuple(f"{i}{j}" for j in range(size)) for i in range(len(values))]
    return [
        SubsetScore(entry, size, s, v, v / 0.8 if normalised else None) for s, v in zip(subsets, values, strict=True)
    ]


def test_the_p_value_is_that_of_the_formula_worked_by_hand() -> None:
    """Differences 1, 2, 3, 6: mean 3, variance 14/3, t = 3 / sqrt(14/12) on three degrees of freedom."""
    expected = t.sf(3 / math.sqrt(14 / 12), df=3)
    assert paired_p_value([11, 12, 13, 16], [10, 10, 10, 10]) == pytest.approx(expected, rel=1e-12)
    # its distribution function at three degrees of freedom, in closed form
    x = 3 / math.sqrt(14 / 12) / math.sqrt(3)
    assert expected == pytest.approx(0.5 - (math.atan(x) + x / (1 + x * x)) / math.pi, rel=1e-9)


def test_the_test_is_one_sided_and_paired() -> None:
    first, other = [0.8, 0.7, 0.9, 0.6], [0.78, 0.69, 0.85, 0.59]
    p = paired_p_value(first, other)
    assert p is not None
    assert p < 0.05
    assert paired_p_value(other, first) == pytest.approx(1 - p)
    unpaired = paired_p_value(first, [other[i] for i in (1, 0, 3, 2)])
    assert unpaired is not None
    assert unpaired > 0.05


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ([0.8], [0.7]),
        ([], []),
        ([0.8, 0.7], [0.8, 0.7]),
        ([0.8, 0.7, 0.3], [0.7, 0.6, 0.2]),  # the same difference but for rounding
    ],
)
def test_pairs_without_spread_have_no_p_value(first: list[float], other: list[float]) -> None:
    assert paired_p_value(first, other) is None


def test_each_size_is_summed_up_and_tested_against_the_first_entry() -> None:
    given = [
        *points("ours", [0.8, 0.9, 0.7]),
        *points("ours", [0.6], size=3),
        *points("theirs", [0.7, 0.6, 0.68]),
        *points("theirs", [0.5], size=3),
    ]
    ours, ours_3, theirs, theirs_3 = summarise(given)
    assert (ours.entry, ours.tasks, ours.subsets, ours.p) == ("ours", 2, 3, None)
    assert ours.mean == pytest.approx(0.8)
    assert ours.deviation == pytest.approx(0.1)
    assert (ours_3.subsets, ours_3.mean, ours_3.deviation, ours_3.p) == (1, 0.6, None, None)
    assert theirs.p == paired_p_value([0.8, 0.9, 0.7], [0.7, 0.6, 0.68])
    assert theirs_3.p is None
    assert not theirs_3.tests["subsets"].significant


def test_normalised_scores_are_what_is_tested_where_there_are_some() -> None:
    summary = summarise(points("ours", [0.4, 0.6], normalised=True))[0]
    assert summary.mean == pytest.approx(0.5 / 0.8)
    assert summary.deviation == pytest.approx(math.sqrt(0.02) / 0.8)


def test_nothing_studied_gives_nothing() -> None:
    params = SimpleNamespace(first_seed=0, methods={}, tasks={"a": None, "b": None}, studies=Studies())
    comparison = Comparison(params, stages)
    assert summarise([]) == []
    assert [comparison.of(each.read) for each in sections().values() if each.inside == "studies"] == [None] * 6
    assert studies.read(comparison) == {
        "tasks": {"subsets": [], "sizes": []},
        "rank": {"tasks": [], "mean": {}},
        "sweeps": {},
        "ablations": {},
        "budgets": {"entries": [], "too_small": []},
    }


def test_the_test_over_tasks_gives_the_p_values_of_drms_appendix_c() -> None:
    """From the scores that its table 10 prints, each over that of the task's own model, for all eight tasks."""
    paper = read_yaml(DRM)
    (table,) = (table for table in paper["tables"] if table["table"] == "Table 10")
    assert table["columns"][-1] == "mean"
    rows = table["rows"]["clip-vit-b-32-8"]
    own = rows["individual"][:-1]
    found = [
        SubsetScore(
            entry,
            8,
            tuple(table["columns"][:-1]),
            0.0,
            None,
            None,
            tuple(a / b for a, b in zip(row[:-1], own, strict=True)),
        )
        for entry, row in ((entry, rows[entry]) for entry in ("drm_h", "average", "ties", "dare_ties"))
    ]
    summaries = summarise(found)[1:]
    p = {each.entry: each.p_over_tasks for each in summaries}
    assert p == pytest.approx({"average": 2.09e-3, "ties": 4.44e-3, "dare_ties": 4.02e-3}, rel=2e-3)
    printed = {"average": 2.18e-3, "ties": 4.61e-3, "dare_ties": 3.80e-3}  # its table 5, from scores of more digits
    assert p == pytest.approx(printed, rel=0.06)
    assert [each.p for each in summaries] == [None] * 3  # one subset has no spread
    assert [each.tests["tasks"].pairs for each in summaries] == [8] * 3


def test_the_pairs_over_tasks_are_every_task_of_every_subset() -> None:
    first = [
        SubsetScore("ours", 2, (a, b), 0.0, None, None, pair) for a, b, pair in (("x", "y", (1, 2)), ("x", "z", (1, 4)))
    ]
    other = [
        SubsetScore("other", 2, (a, b), 0.0, None, None, p) for a, b, p in (("x", "y", (0, 2)), ("x", "z", (1, 3)))
    ]
    (_, theirs) = summarise(first + other)
    assert theirs.p_over_tasks == paired_p_value([1, 2, 1, 4], [0, 2, 1, 3])
    assert theirs.tests["tasks"].pairs == 4
