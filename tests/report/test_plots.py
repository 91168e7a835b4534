"""Many entries stay readable: what is named, and what a cell shows."""

import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from merganser import registry
from merganser.evaluation.scoring import Score
from merganser.report.comparison import numbers_of
from merganser.report.curves import LineStyle, over_depth
from merganser.report.formats import Wording
from merganser.report.heatmaps import DEEPEST, LIGHTEST, Shades, between_tasks, entries_by_task
from merganser.report.plots import LABEL_HEIGHT, STYLE, place_labels
from merganser.report.rows import Row, best, front, lowest
from merganser.report.scores import Grid, MergeMeasures, Scores, grid_mean
from merganser.report.sections.glance import (
    against_memory,
    against_time,
    learned_rows,
    learning_curves,
    named,
    score_bars,
)
from merganser.report.sections.study_budgets import Fitted, Matched, plots

NAN = float("nan")


def row(entry: str, method: str, normalised: float, cost: float) -> Row:
    """Make an entry with these scores."""
    about = registry.get(method)
    group = "reference" if about.family == "references" else "parts" if about.overlay else "single"
    profile = {"amr": cost, "wall_s": cost, "peak_rss_bytes": 0}
    score: Score = {"metric": "accuracy", "value": normalised, "count": 1, "stderr": None}
    scores = Scores({"task": score}, profile, normalised, drop_rate=1 - normalised)
    return Row(entry, about, about.reads, group, scores, {}, {}, {"task": Path("x")}, {"task": ""}, {})


def names_of(rows: list[Row]) -> set[str]:
    return {rows[index].entry for index in named(rows, [row.amr for row in rows])}


def test_references_leaders_of_families_and_what_nothing_beats_are_named() -> None:
    rows = [
        row("base", "base", 0.5, 0.0),
        row("average", "average", 0.7, 0.0),
        row("task_arithmetic", "task_arithmetic", 0.65, 0.0),
        row("ties", "ties", 0.6, 0.0),  # beaten, and the best of its family
        row("cheap", "svd", 0.8, 0.1),  # the cheapest above one model for all
        row("waste", "svd", 0.75, 0.2),
        row("good", "svd", 0.9, 0.3),
    ]
    assert names_of(rows) == {"base", "average", "ties", "cheap", "good"}


def test_the_front_is_ringed_and_leaves_references_out() -> None:
    rows = [row("base", "base", 0.99, 0.0), row("ties", "ties", 0.6, 0.0), row("emr", "emr", 0.9, 0.03)]
    beaten = row("svd", "svd", 0.8, 0.1)
    assert [each.entry for each in front([*rows, beaten], [0.0, 0.0, 0.03, 0.1])] == ["ties", "emr"]
    with matplotlib.rc_context(STYLE):
        drawn_rings = against_memory([*rows, beaten]).count('style="fill: none; stroke: #1d2430; stroke-width: 0.9"')
    assert drawn_rings == 2


def test_entries_of_one_score_and_one_cost_are_both_on_the_front() -> None:
    rows = [row("ties", "ties", 0.6, 0.0), row("same", "average", 0.6, 0.0), row("emr", "emr", 0.6, 0.03)]
    assert [each.entry for each in front(rows, [0.0, 0.0, 0.03])] == ["ties", "same"]


def test_what_is_above_by_the_rounding_of_a_sum_alone_is_neither_best_nor_on_the_front() -> None:
    rows = [row("ties", "ties", 0.3 + 0.2 + 0.1, 0.0), row("emr", "emr", 0.1 + 0.2 + 0.3, 0.03)]
    assert rows[1].scores.mean > rows[0].scores.mean
    assert front(rows, [0.0, 0.03]) == rows[:1]
    assert best(rows) is rows[0]


def test_of_forty_entries_at_one_cost_few_are_named() -> None:
    rows = [row(f"entry{i}", "task_arithmetic", 0.5 + i / 100, 0.0) for i in range(40)]
    assert names_of(rows) == {"entry39"}


def test_a_label_covers_no_point_that_has_no_label() -> None:
    others = [(30.0 + 8 * i, 50.0) for i in range(5)]
    place = place_labels([(20.0, 50.0)], [40.0], 400.0, others)[0]
    assert not any(
        place.x - 4 < x < place.x + 44 and place.y - LABEL_HEIGHT / 2 - 4 < y < place.y + LABEL_HEIGHT / 2 + 4
        for x, y in others
    )


def drawn(grid: Grid, tasks: list[str]) -> str:
    with matplotlib.rc_context(STYLE):
        return between_tasks(grid, tasks)


def test_a_cell_shows_its_number_its_sign_and_its_size() -> None:
    grid = np.array([[1, 0.4, -0.2], [0.4, 1, NAN], [-0.2, NAN, 1]])
    svg = drawn(grid, ["a", "b", "c"])
    assert svg.count("fill: #2b6cb1; fill-opacity: 0.65") == 3  # two cells, and the key's highest number
    assert svg.count("fill: #c2571b; fill-opacity: 0.345") == 3
    assert svg.count(">.40<") == 3
    assert svg.count(">-.20<") == 3
    assert ">1.00<" not in svg  # a task with itself says nothing


def test_shades_take_all_of_the_range_of_their_own_grid() -> None:
    for low, high in ((0.36, 0.44), (-0.44, -0.36), (100.0, 101.0)):
        shades = Shades(low, high)
        assert {shades.colour(low)[3], shades.colour(high)[3]} == {LIGHTEST, DEEPEST}
        assert shades.colour((low + high) / 2)[3] == pytest.approx((LIGHTEST + DEEPEST) / 2, abs=1e-3)
    assert Shades(-0.1, 0.2).colour(0.0)[3] == LIGHTEST
    assert Shades(0.5, 0.5).colour(0.5)[3] == DEEPEST


def test_a_large_number_keeps_its_digits() -> None:
    svg = drawn(np.array([[1, 10.25], [-0.001, 1]]), ["a", "b"])
    assert ">10.25<" in svg
    assert ">.00<" in svg


def test_a_grid_without_numbers_is_drawn_empty() -> None:
    assert "fill-opacity" not in drawn(np.full((2, 2), NAN), ["a", "b"])


def test_many_tasks_keep_their_shades_and_lose_their_numbers_but_for_the_key() -> None:
    with matplotlib.rc_context(STYLE):
        svg = entries_by_task(np.full((2, 20), 0.5), ["a", "b"], [f"task{t}" for t in range(20)])
    assert svg.count("fill-opacity: 0.65") == 41
    assert svg.count(">.50<") == 1


def test_the_key_of_a_heat_map_is_no_row_of_it() -> None:
    svg = drawn(np.array([[1, 0.25], [0.75, 1]]), ["a", "b"])
    assert svg.count('id="ytick_') == 2
    assert "shades" not in svg
    assert svg.count(">.25<") == svg.count(">.75<") == 2  # in its cell, and beside the key


def test_the_pareto_line_strikes_through_no_label() -> None:
    line = [(20.0, 50.0), (200.0, 50.0), (200.0, 90.0), (400.0, 90.0)]
    for point, place in zip(line[::2], place_labels(line[::2], [40.0, 40.0], 400.0, line=line), strict=True):
        assert abs(place.y - point[1]) > LABEL_HEIGHT / 2 or place.x + 40 < point[0]


def test_no_label_lies_below_the_axis() -> None:
    points = [(5.0, 12.0)] * 5
    assert all(place.y >= LABEL_HEIGHT / 2 for place in place_labels(points, [40.0] * 5, 400.0))


@pytest.mark.parametrize("slowest", [1.0, 4.0, 9.0, 20.0, 60.0, 500.0])
def test_an_axis_of_seconds_has_two_ticks_at_least(slowest: float) -> None:
    for fastest in (0.011, 0.3, 1.0, 7.0):
        rows = [row("average", "average", 0.5, fastest), row("ties", "ties", 0.6, fastest * slowest)]
        with matplotlib.rc_context(STYLE):
            shown = re.findall(r'id="xtick_\d+">.*?<text [^>]*>([^<]*)</text>', against_time(rows), re.S)
        assert 2 <= sum(bool(text) for text in shown) <= 9


def test_plots_over_depth_name_their_axis() -> None:
    with matplotlib.rc_context(STYLE):
        svg = over_depth(
            [(LineStyle("m", "m"), {"block.0.w": 1.0, "block.1.w": 2.0, "proj": 3.0})],
            ["block.0.w", "block.1.w", "proj"],
            "ratio",
        )
    assert svg.count(">block</text>") == 1


def test_means_leave_out_what_is_not_defined() -> None:
    assert grid_mean(0.3) == 0.3
    assert grid_mean([1.0, None, 3.0]) == 2
    assert grid_mean([[1.0, 0.5], [0.1, 1.0]]) == pytest.approx(0.3)
    assert np.isnan(grid_mean(None))
    assert np.isnan(grid_mean([[1.0]]))


def test_matrices_without_a_measure_leave_the_mean_to_the_others() -> None:
    def layer(value: float | None) -> dict:
        return {"kind": "matrix", "row_space_interference": {"own": [[1.0, value], [value, 1.0]]}}

    measured = MergeMeasures({"tasks": ["a", "b"], "layers": {"w10": layer(0.2), "w9": layer(None)}}, {})
    assert measured.matrices == ["w9", "w10"]
    assert measured.row_spaces("own").tolist() == [[1.0, 0.2], [0.2, 1.0]]


def test_scores_of_different_metrics_are_named_as_scores_and_may_be_negative() -> None:
    entry = row("ties", "ties", 0.5, 0.0)
    scores: dict[str, Score] = {
        "cola": {"metric": "matthews", "value": -0.25, "count": 9, "stderr": 0.03},
        "rte": {"metric": "accuracy", "value": 0.75, "count": 9, "stderr": 0.04},
    }
    mixed = replace(entry, scores=replace(entry.scores, by_task=scores))
    assert mixed.scores.mean == 0.25
    assert mixed.scores.error == pytest.approx(0.025)
    assert lowest([mixed]) == -30
    assert numbers_of(mixed)["matthews"] == {"cola": -0.25}
    with matplotlib.rc_context(STYLE):
        assert "score, × 100 (bar: mean; dots: tasks)" in score_bars([mixed], ["cola", "rte"])
        assert "accuracy, % (bar: mean; dots: tasks)" in score_bars([entry], ["task"])


def test_each_learned_entry_has_a_line_of_its_losses() -> None:
    trace = {"checks": [{"step": step, "loss": 5 - step / 10} for step in (0, 10, 20)], "best_step": 10}
    rows = [row("ada", "adamerging", 0.6, 0.0), row("ties", "ties", 0.6, 0.0)]
    learned = [replace(rows[0], scores=replace(rows[0].scores, profile={"learned": trace})), rows[1]]
    by_blocks = replace(rows[1], scores=replace(rows[1].scores, profile={"learned": {"losses": [], "checks": []}}))
    assert [each.entry for each in learned_rows([*learned, by_blocks])] == ["ada"]
    with matplotlib.rc_context(STYLE):
        found = learning_curves(learned)
        assert found == learning_curves(learned)
    assert ">ada</text>" in found
    assert ">ties</text>" not in found
    assert learned_rows(rows) == []


def test_each_of_fifteen_lone_dots_at_the_same_bytes_has_a_look_of_its_own() -> None:
    score: Score = {"metric": "accuracy", "value": 0.5, "count": 1, "stderr": None}
    names = [f"entry-{number}" for number in range(15)]
    fitted = {
        name: [Fitted(by_task={"task": score}, entry=name, method="emr", values={}, amr=0.03, results={})]
        for name in names
    }
    with matplotlib.rc_context(STYLE):
        drawn = plots(Matched(fitted, {0.05: {}}, {}), Wording("accuracy", "%"))["study_budgets"]
    looks = re.findall(r'<use xlink:href="#(\w+)"[^>]* style="fill: ', drawn)
    assert [looks.count(look) for look in set(looks)] == [2] * 15  # in the plot and in the legend


def test_a_logarithmic_axis_has_small_ticks_only_where_powers_of_ten_are_too_few() -> None:
    names = ["block.0.w", "block.1.w"]
    with matplotlib.rc_context(STYLE):
        wide, narrow = (
            over_depth([(LineStyle("m", "m"), dict(zip(names, values, strict=True)))], names, "ratio", log=True)
            for values in ((1e-3, 1.0), (2.0, 5.0))
        )
    assert wide.count('id="ytick_') <= 6
    assert narrow.count('id="ytick_') >= 3
