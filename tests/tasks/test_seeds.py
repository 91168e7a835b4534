"""Several seeds: what draws at random is merged once with each, everything else once."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from merganser.config.loading import load_params
from merganser.evaluation.examples import read_results
from merganser.tasks import (
    difference,
    evaluate,
    extract_difference,
    learn,
    measure_merged,
    merge,
    prepare_validation,
    record,
    recorded,
    statistics,
    surgery,
)
from tests.tasks.comparison import METHODS, TASKS, inside, report_without_plots

SEEDS = [0, 2, 1]
READING = {
    "adamerging": {"method": "adamerging", "reads": "learned/ada"},
    "fisher": {"method": "fisher", "reads": "statistics/fisher"},
    "surgery": {"method": "surgery", "reads": "surgery/x"},
}
SECTIONS: dict[str, Any] = {
    "differences": {"x": {"merged": "average"}},
    "learned": {"ada": {"learner": "adamerging", "of": "deltas", "steps": 2, "batch_size": 2, "lr": 0.05}},
    "statistics": {"fisher": {"kind": "fisher", "examples": 3}},
    "surgery": {"x": {"of": "differences/x", "rank": 2, "steps": 3, "batch_size": 2, "lr": 0.05}},
}
RANDOM = {"dare": {"method": "dare", "reads": "deltas"}, "knots": {"method": "knots", "reads": "deltas"}}


@pytest.fixture(scope="module")
def folder(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a comparison with two more entries, merged and evaluated by three seeds, and work in it."""
    made = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("seeds") / "comparison"))
    with inside(made):
        seeded(SEEDS)
        for entry in RANDOM:
            merge.main([entry])
            measure_merged.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
        yield made


def seeded(seed: int | list[int], methods: dict[str, dict[str, Any]] = METHODS | RANDOM, **sections: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    params |= {"seed": seed, "methods": methods, **sections}
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def weights(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix == ".safetensors"}


def test_each_seeds_merge_is_that_of_this_seed_alone(folder: Path) -> None:
    merged = Path("data/merged/dare")
    found = {0: weights(merged)} | {int(path.name): weights(path) for path in (merged / "seeds").iterdir()}
    assert set(found) == set(SEEDS)
    card = (merged / "seeds/2/README.md").read_text()
    shutil.copytree(merged, folder / "kept")
    for seed in SEEDS:
        seeded(seed)
        merge.main(["dare"])
        assert weights(merged) == found[seed]
        assert not (merged / "seeds").exists()
        if seed == 2:
            assert (merged / "README.md").read_text() == card
    seeded(SEEDS)
    shutil.rmtree(merged)
    (folder / "kept").rename(merged)


def test_what_draws_nothing_is_merged_once(folder: Path) -> None:
    assert not (folder / "data/merged/knots/seeds").exists()
    assert "spread" not in json.loads((folder / "data/metrics/knots/red.json").read_text())


def test_a_score_is_the_mean_over_the_seeds_with_their_spread_apart_from_its_error(folder: Path) -> None:
    for task in TASKS:
        found = json.loads((folder / f"data/metrics/dare/{task}.json").read_text())
        assert len(found["seeds"]) == 3
        assert found["value"] == pytest.approx(fmean(found["seeds"]))
        assert found["spread"] == pytest.approx(stdev(found["seeds"]))
        score = read_results(folder / f"data/examples/dare/{task}.safetensors").score
        assert score is not None
        assert score.mean() == pytest.approx(found["value"])
        assert found["stderr"] == pytest.approx(score.std(ddof=1) / len(score) ** 0.5)


def test_the_report_and_mlflow_show_mean_and_spread(folder: Path) -> None:
    shown = {entry: (METHODS | RANDOM)[entry] for entry in ("average", "dare", "individual")}
    seeded(SEEDS, shown)
    for entry in shown:
        record.main([entry])
    report_without_plots()
    found = [json.loads((folder / f"data/metrics/dare/{task}.json").read_text()) for task in TASKS]
    spread = stdev(fmean(values) for values in zip(*(score["seeds"] for score in found), strict=True))
    page = (folder / "report/index.html").read_text()
    assert f"± {100 * spread:.1f}</small>" in page
    assert "the seeds 0, 2, 1" in page
    assert json.loads((folder / "data/scores.json").read_text())["dare"]["spread"] == pytest.approx(spread)
    logged = recorded.score_metrics(load_params(Path("params.yaml")), "dare")
    assert logged["score_mean_spread"] == pytest.approx(spread)
    assert logged["accuracy_spread/red"] == found[TASKS.index("red")]["spread"]
    assert logged["score_mean"] == pytest.approx(fmean(score["value"] for score in found))


@pytest.fixture(scope="module")
def drawn(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a comparison with entries that read what was drawn, by two seeds, and work in it."""
    made = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("drawn") / "comparison"))
    with inside(made):
        seeded([0, 2], METHODS | READING, **SECTIONS)
        difference.main(["x"])
        for task in TASKS:
            extract_difference.main(["x", task])
            prepare_validation.main([task, "split"])
        draw()
        yield made


def draw() -> None:
    """Learn, measure and merge by the seeds that params.yaml says."""
    learn.main(["ada"])
    surgery.main(["x"])
    for task in TASKS:
        statistics.main([f"fisher-{task}"])
    for entry in READING:
        merge.main([entry])


def test_what_reads_what_was_drawn_is_merged_with_each_seed_as_with_that_alone(drawn: Path) -> None:
    found = {entry: weights(drawn / "data/merged" / entry) for entry in READING}
    others = {entry: weights(drawn / "data/merged" / entry / "seeds/2") for entry in READING}
    assert all(others[entry] != found[entry] for entry in READING)
    for seed, expected in ((2, others), (0, found)):
        seeded(seed, METHODS | READING, **SECTIONS)
        draw()
        assert {entry: weights(drawn / "data/merged" / entry) for entry in READING} == expected
        assert not list(drawn.glob("data/*/*/**/seeds/*"))
    seeded([0, 2], METHODS | READING, **SECTIONS)
    draw()
    assert {entry: weights(drawn / "data/merged" / entry / "seeds/2") for entry in READING} == others
