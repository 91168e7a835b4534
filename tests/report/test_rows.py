import json
from pathlib import Path
from typing import Any

import pytest

from merganser import registry
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.evaluation.scoring import Score
from merganser.report.rows import MEAN, Row, best, best_cells, seconds_before, spent_before
from merganser.report.scores import Scores


def params_with_a_start_from_data() -> Params:
    """Give the tiny comparison with an entry that reads differences to a merge by learned values."""
    content = load_params(Path(__file__).parents[1] / "tiny/params.yaml").model_dump()
    content["differences"]["from_ada"] = {"merged": "ada"}
    content["methods"]["of_ada"] = {"method": "emr", "reads": "differences/from_ada"}
    return Params.model_validate(content)


def test_what_a_merge_before_spent_on_data_counts() -> None:
    profiles: dict[str, dict[str, Any]] = {"ada": {"learned": {"forwards": 8, "backwards": 4}}, "of_ada": {"amr": 0.1}}
    scores = {entry: Scores({}, profile) for entry, profile in profiles.items()}
    spent = [
        spent_before(params_with_a_start_from_data(), "of_ada", scores, word) for word in ("forwards", "backwards")
    ]
    assert spent == [8, 4]


@pytest.mark.parametrize(
    ("entry", "seconds"), [("ada", 3.5), ("regmean", 1.75), ("ties", None), ("dts_d", None), ("of_ada", 3.5)]
)
def test_the_seconds_before_a_merge_are_those_of_what_it_reads(
    entry: str, seconds: float | None, tmp_path: Path
) -> None:
    times = {"learned/ada": 3.5, "statistics/gram/dark": 1.25, "statistics/gram/light": 0.5, "statistics/gram/gone": 9}
    for name, wall in {**times, "merge/ties": 7.0, "merge/average": 7.0}.items():
        file = tmp_path / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"wall_s": wall, "cpu_s": 0.0}))
    params = params_with_a_start_from_data()
    assert seconds_before(params, params.methods[entry], tmp_path) == seconds


@pytest.mark.parametrize(
    ("method", "reads", "needs"),
    [
        ("fisher", "statistics/fisher", ["statistics/fisher"]),
        ("fisher", "statistics/own", ["statistics/own"]),
        ("gradient_matching", "statistics/own", ["statistics/own", "base_fisher"]),
        ("regmean", "searches/ratio", ["searches/ratio", "gram"]),
        ("dts_unseen", "embeddings/svd", ["embeddings/svd"]),
    ],
)
def test_statistics_are_named_once_whatever_their_section_calls_them(method: str, reads: str, needs: list[str]) -> None:
    scores = Scores(by_task={}, profile={})
    row = Row(
        "one", registry.get(method), reads, "single", scores, values={}, declared={}, files={}, hashes={}, receipt={}
    )
    assert row.needs == needs


def test_means_that_differ_by_rounding_alone_are_best_together() -> None:
    def scored(entry: str, method: str, *values: float) -> Row:
        scores: list[Score] = [{"metric": "accuracy", "value": value, "count": 1, "stderr": None} for value in values]
        of = Scores(dict(zip("abc", scores, strict=True)), {})
        return Row(entry, registry.get(method), "deltas", "single", of, {}, {}, {}, {}, {})

    rows = [scored("first", "average", 0.3, 0.2, 0.1), scored("second", "ties", 0.1, 0.2, 0.3)]
    assert rows[0].scores.mean != rows[1].scores.mean
    assert {entry for entry, column in best_cells(rows, list("abc")) if column == MEAN} == {"first", "second"}
    assert best(rows) is rows[0]
