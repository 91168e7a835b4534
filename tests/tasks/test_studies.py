"""The stages of the studies, on the tiny comparison."""

import csv
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.points import SCORES, Points, check_points, write_points
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from merganser.evaluation.scoring import score_of
from merganser.inputs.deltas import DeltaFile
from merganser.report.sections import study_rank as report_of_ranks
from merganser.report.sections import study_tasks as report_of_tasks
from merganser.tasks import point, study_rank
from merganser.tasks.stages import METRICS, POINTS
from tests import PYTHONPATH
from tests.support import python
from tests.tasks.comparison import STUDIES, TASKS, inside, measure_points, open_comparison, write_sections
from tests.tiny_clip import score_clip

ROOT = Path(__file__).resolve().parents[2]
PAIR = ("dark", "light")

KILLED = """
import sys
from merganser.tasks import point
from tests.tasks.killing import run_until
run_until(point.main, sys.argv[1:2], sys.argv[2])
"""


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison with every study done, on all subsets."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("studies") / "comparison"))
    change(folder, lambda params: params["studies"]["tasks"].update(subsets=3))
    with inside(folder):
        measure_points()
    return folder


def change(folder: Path, how: Callable[[dict[str, Any]], object]) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    how(params)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def places(folder: Path, key: str) -> dict[tuple[str, ...], Path]:
    """Return where the points of an entry's subsets are."""
    points = Points(load_params(folder / "params.yaml")).task_study(key)
    return {subset: folder / POINTS / point.folder for subset, point in points.items()}


def scores(folder: Path, key: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Read an entry's scores by subset."""
    return {subset: json.loads((place / SCORES).read_text())["scores"] for subset, place in places(folder, key).items()}


def measured(folder: Path, task: str, parameters: dict[str, Tensor]) -> dict[str, Any]:
    """Score a model given by its parameters as the comparison does."""
    results = score_clip(folder / "data/base", parameters.items(), folder / "data/datasets" / task)
    return {**score_of("accuracy", results), "device": "cpu"}


def read(path: Path) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names}


def test_every_subset_has_a_score_on_each_of_its_tasks(made: Path) -> None:
    for key in STUDIES:
        found = scores(made, key)
        assert {subset: tuple(of_tasks) for subset, of_tasks in found.items()} == {
            subset: subset for subset in [*(("dark", "light"), ("dark", "red"), ("light", "red")), TASKS]
        }


@pytest.mark.parametrize("entry", ["average", "tsv_c"])
def test_the_merge_of_all_tasks_scores_as_the_comparisons_own(made: Path, entry: str) -> None:
    for task, found in scores(made, entry)[TASKS].items():
        assert found == json.loads((made / f"data/metrics/{entry}/{task}.json").read_text())


def test_a_pairs_average_is_the_average_of_those_two_models(made: Path) -> None:
    base, models = read(made / "data/base"), [read(made / "data/checkpoints" / task) for task in PAIR]
    average = {n: torch.stack([m[n] for m in models]).mean(0) if n in models[0] else base[n] for n in base}
    assert scores(made, "average")[PAIR] == {task: measured(made, task, average) for task in PAIR}


def test_a_merge_of_some_tasks_is_measured_on_the_others_apart(folder: Path) -> None:
    change(folder, lambda params: params["studies"]["tasks"]["methods"]["average"].update(unseen=True))
    before = yaml.safe_load((folder / "params.yaml").read_text())
    before["studies"]["tasks"]["methods"]["average"].pop("unseen")
    seen = {point.tasks: point.folder for point in Points(Params.model_validate(before)).task_study("average").values()}
    assert len(measure_points()) == 3  # of pairs: the merge of all tasks leaves none
    found = scores(folder, "average")
    assert set(found[TASKS]) == set(TASKS)
    for pair in (subset for subset in found if subset != TASKS):
        own = json.loads((folder / POINTS / seen[pair] / SCORES).read_text())["scores"]
        assert {task: found[pair][task] for task in pair} == own
    base, models = read(folder / "data/base"), [read(folder / "data/checkpoints" / task) for task in PAIR]
    average = {n: torch.stack([m[n] for m in models]).mean(0) if n in models[0] else base[n] for n in base}
    assert found[PAIR]["red"] == measured(folder, "red", average)
    results = report_of_tasks.read(open_comparison())
    assert list(results.with_unseen) == ["average"]
    pair, whole = results.with_unseen["average"]
    unseen = [point.unseen for point in results.points if point.entry == "average" and point.tasks == 2]
    assert pair.unseen == pytest.approx(sum(value or 0 for value in unseen) / 3)
    assert whole.unseen is None


@pytest.mark.parametrize(
    ("what", "measured"),
    [
        (lambda p: p["evaluation"].update(batch_size=7), 12),
        (lambda p: p["studies"]["tasks"]["methods"]["dare"].update(drop_rate=0.5), 4),
        (lambda p: p["studies"]["tasks"]["methods"]["dare"].update(coefficients={"red": 0.5}), 4),
        (lambda p: p.update(seed=1), 12),
        (lambda p: p["studies"]["rank"].update(fractions=[]), 0),
        (lambda p: p["methods"].pop("base"), 0),
        (lambda p: p["studies"]["tasks"]["methods"].update(again={"method": "average", "reads": "deltas"}), 0),
    ],
)
def test_a_point_stays_while_all_that_its_scores_follow_from_does(
    folder: Path, what: Callable[[dict[str, Any]], object], measured: int
) -> None:
    change(folder, what)
    points = Points(load_params()).by_id.values()
    assert sum(not (POINTS / point.folder).exists() for point in points) == measured


def test_a_point_has_each_examples_result_and_says_what_it_is(made: Path) -> None:
    for subset, place in places(made, "dare").items():
        about = json.loads((place / SCORES).read_text())
        assert (about["method"], about["tasks"], about["split"]) == ("dare", list(subset), "prepared")
        for task in subset:
            results = read_results(place / f"{task}.safetensors")
            assert len(results.score) == about["scores"][task]["count"]
        assert {path.name for path in place.iterdir()} == {SCORES, *(f"{task}.safetensors" for task in subset)}


def test_what_a_kill_leaves_does_not_stay(folder: Path, made: Path) -> None:
    place = places(folder, "dare")[PAIR]
    whole = {path.name: path.read_bytes() for path in place.iterdir()}
    shutil.rmtree(place)
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([*python(), "-c", KILLED, place.name, SCORES], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not place.exists()
    assert any(place.parent.glob(".*.partial"))
    assert measure_points() == [place.name]
    assert {path.name: path.read_bytes() for path in place.iterdir()} == whole
    assert not any(place.parent.glob(".*.partial"))


def test_the_file_of_points_is_written_when_it_follows_from_another_params_yaml(folder: Path) -> None:
    params = load_params()
    assert write_points(params)
    assert not write_points(params)
    check_points(params)
    change(folder, lambda params: params["studies"]["tasks"].update(subsets=1))
    with pytest.raises(
        InputError, match=r"points\.yaml: is of another params\.yaml; run `merganser status` to rewrite it"
    ):
        check_points(load_params())


def test_an_entry_or_a_task_that_is_not_declared_is_refused(folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"points\.yaml lists a point that params\.yaml does not have: dare-0; run `merganser"
    ):
        point.main(["dare-0"])
    with pytest.raises(InputError, match='no "drak" under tasks'):
        study_rank.main(["drak", "fractions"])


def test_inputs_that_are_not_there_are_named(folder: Path) -> None:
    (folder / "data/deltas/light.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"data/deltas/light\.safetensors"):
        point.main([places(folder, "average")[PAIR].name])


def test_the_rank_sweep_ends_with_the_fine_tuned_model_itself(made: Path) -> None:
    for task in TASKS:
        curve = json.loads((made / f"data/measures/studies/rank/{task}.json").read_text())["curve"]
        assert [point["fraction"] for point in curve] == [0.1, 0.5, 1.0]
        individual = json.loads((made / f"data/metrics/individual/{task}.json").read_text())
        assert curve[-1] == {"fraction": 1.0, **individual}


def test_a_share_of_the_rank_keeps_that_many_leading_triples_and_the_vectors_whole(made: Path) -> None:
    base, tuned = read(made / "data/base"), read(made / "data/checkpoints/red")
    model = base | tuned
    for name, kind in DeltaFile(made / "data/deltas/red.safetensors").kinds.items():
        if kind == "matrix":
            delta = (tuned[name] - base[name]).flatten(1)
            u, s, vh = torch.linalg.svd(delta.double(), full_matrices=False)
            k = int(0.5 * len(s))
            model[name] = base[name] + ((u[:, :k] * s[:k]) @ vh[:k]).float().reshape(base[name].shape)
    curve = json.loads((made / "data/measures/studies/rank/red.json").read_text())["curve"]
    assert curve[1] == {"fraction": 0.5, **measured(made, "red", model)}


def test_a_sweep_over_no_share_measures_nothing(folder: Path) -> None:
    change(folder, lambda params: params["studies"]["rank"].update(fractions=[]))
    study_rank.main(["red", "fractions"])
    assert json.loads((folder / "data/measures/studies/rank/red.json").read_text()) == {"curve": []}


def test_the_report_has_the_numbers_of_the_files(folder: Path, tmp_path: Path) -> None:
    comparison = open_comparison()
    results, ranks = comparison.of(report_of_tasks.read), comparison.of(report_of_ranks.read)
    individual = {task: json.loads((METRICS / f"individual/{task}.json").read_text())["value"] for task in TASKS}
    for one in results.points:
        found = scores(folder, one.entry)[one.subset]
        assert one.score == pytest.approx(sum(found[task]["value"] for task in found) / one.tasks)
        ratios = [found[task]["value"] / individual[task] for task in found]
        assert one.normalised == pytest.approx(sum(ratios) / one.tasks)
    assert [(s.entry, s.tasks, s.subsets) for s in results.summaries] == [
        (entry, size, count) for entry in STUDIES for size, count in ((2, 3), (3, 1))
    ]
    assert ranks.mean_at(1.0) == pytest.approx(sum(individual.values()) / 3)
    write_sections(tmp_path, comparison, "study_tasks", "study_rank", "studies")
    rows = list(csv.DictReader((tmp_path / "plots/study_tasks.csv").open()))
    assert [row["subset"] for row in rows[:4]] == ["dark+light", "dark+red", "light+red", "dark+light+red"]
    assert [float(row["score"]) for row in rows] == [point.score for point in results.points]
    assert len(list(csv.DictReader((tmp_path / "plots/study_rank.csv").open()))) == 9
    assert json.loads((tmp_path / "studies.json").read_text())["rank"]["mean"]["1"] == ranks.mean_at(1.0)


def test_a_subset_that_was_not_measured_yet_is_named(folder: Path) -> None:
    (places(folder, "dare")[PAIR] / SCORES).unlink()
    with pytest.raises(InputError, match=r"data/measures/points/studies/dare-.*/scores\.json: missing"):
        report_of_tasks.read(open_comparison())
