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
from merganser.errors import InputError
from merganser.evaluation.scoring import score_of
from merganser.inputs.deltas import DeltaFile
from merganser.report.sections import study_rank as report_of_ranks
from merganser.report.sections import study_tasks as report_of_tasks
from merganser.tasks import prepare, study_rank, study_tasks
from merganser.tasks.stages import METRICS
from tests import PYTHONPATH
from tests.support import python
from tests.tasks.comparison import STUDIES, TASKS, inside, open_comparison, write_sections
from tests.tiny_clip import score_clip

ROOT = Path(__file__).resolve().parents[2]
PAIR = ("dark", "light")
# the stage, killed from within as it merges the third subset: from without, the moment could not be chosen
KILLED = """
import os, signal
from pathlib import Path
from merganser.tasks import study_tasks
whole = study_tasks.score_merge
def score_merge(*args):
    if len(list(Path("data/measures/studies/tasks/dare").glob("*.json"))) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*args)
study_tasks.score_merge = score_merge
study_tasks.main(["dare"])
"""


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison with every study done, on all subsets."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("studies") / "comparison"))
    change(folder, lambda params: params["studies"]["tasks"].update(subsets=3))
    with inside(folder):
        for key in STUDIES:
            study_tasks.main([key])
    return folder


def change(folder: Path, how: Callable[[dict[str, Any]], object]) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    how(params)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def scores(folder: Path, key: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Read an entry's scores by subset."""
    files = (folder / "data/measures/studies/tasks" / key).iterdir()
    read = [json.loads(file.read_text())["scores"] for file in files]
    return {tuple(found): found for found in read}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
    seen = scores(folder, "average")
    study_tasks.main(["average"])
    assert scores(folder, "average") == seen
    files = [json.loads(file.read_text()) for file in (folder / "data/measures/studies/tasks/average").iterdir()]
    found = {tuple(each["scores"]): each.get("unseen") for each in files}
    assert found[TASKS] is None
    base, models = read(folder / "data/base"), [read(folder / "data/checkpoints" / task) for task in PAIR]
    average = {n: torch.stack([m[n] for m in models]).mean(0) if n in models[0] else base[n] for n in base}
    assert found[PAIR] == {"red": measured(folder, "red", average)}
    results = report_of_tasks.read(open_comparison())
    assert list(results.with_unseen) == ["average"]
    pair, whole = results.with_unseen["average"]
    unseen = [point.unseen for point in results.points if point.entry == "average" and point.tasks == 2]
    assert pair.unseen == pytest.approx(sum(value or 0 for value in unseen) / 3)
    assert whole.unseen is None


def test_a_second_start_measures_nothing_and_keeps_every_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "data/measures/studies/tasks/dare"
    before, times = content(out), {path: path.stat().st_mtime_ns for path in out.iterdir()}
    study_tasks.main(["dare"])
    assert capsys.readouterr().out == "dare: 4 of 4 subsets were there\n"
    assert content(out) == before
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == times


@pytest.mark.parametrize(
    ("what", "kept"),
    [
        (lambda p: p["tasks"]["red"]["data"].update(templates=["a {} thing."]), 1),  # of the pair without it
        (lambda p: p["evaluation"].update(batch_size=7), 0),
        (lambda p: p["studies"]["tasks"]["methods"]["dare"].update(drop_rate=0.5), 0),
        (lambda p: p["studies"]["tasks"]["methods"]["dare"].update(coefficients={"red": 0.5}), 0),
        (lambda p: p.update(seed=1), 0),
        (lambda p: p["studies"]["rank"].update(fractions=[]), 4),
        (lambda p: p["methods"].pop("base"), 4),
    ],
)
def test_what_a_subset_came_from_decides_whether_it_is_measured_again(
    folder: Path, what: Callable[[dict[str, Any]], object], kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, what)
    prepare.main(["red"])
    study_tasks.main(["dare"])
    assert f"dare: {kept} of 4 subsets were there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "kept"),
    [("data/deltas/red.safetensors", 1), ("data/svd/red/vectors.safetensors", 4), ("data/base/source.json", 0)],
)
def test_a_changed_input_file_is_noticed_by_its_content(
    folder: Path, file: str, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / file
    values = bytearray(path.read_bytes())
    values[-3] ^= 1
    path.write_bytes(values)
    study_tasks.main(["average"])
    assert f"average: {kept} of 4 subsets were there" in capsys.readouterr().out


def test_what_is_half_or_strange_does_not_stay(folder: Path, made: Path) -> None:
    out = folder / "data/measures/studies/tasks/average"
    first = next(out.iterdir())
    first.write_bytes(first.read_bytes()[:-20])
    (out / "tmp1").mkdir()
    (out / "tmp1/model.safetensors").write_text("left by a kill")
    (out / "9-0.json").write_text("{}")
    study_tasks.main(["average"])
    assert content(out) == content(made / "data/measures/studies/tasks/average")
    change(folder, lambda params: params["studies"]["tasks"].update(subsets=1))
    study_tasks.main(["average"])
    assert sorted(len(subset) for subset in scores(folder, "average")) == [2, 3]


def test_a_kill_loses_no_subset_that_was_measured(folder: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "data/measures/studies/tasks/dare"
    shutil.rmtree(out)
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([*python(), "-c", KILLED], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = sorted(path.is_dir() for path in out.iterdir())
    assert left == [False, False, True]  # two subsets, and the folder of the third's merge
    study_tasks.main(["dare"])
    assert "dare: 2 of 4 subsets were there" in capsys.readouterr().out
    assert content(out) == content(made / "data/measures/studies/tasks/dare")


def test_an_entry_or_a_task_that_is_not_declared_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r'no "averag" under studies\.tasks\.methods.*did you mean "average"'):
        study_tasks.main(["averag"])
    with pytest.raises(InputError, match='no "drak" under tasks'):
        study_rank.main(["drak", "fractions"])


def test_inputs_that_are_not_there_are_named(folder: Path) -> None:
    (folder / "data/deltas/light.safetensors").unlink()
    with pytest.raises(InputError, match=r"data/deltas/light\.safetensors: missing"):
        study_tasks.main(["average"])


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
    for point in results.points:
        found = scores(folder, point.entry)[point.subset]
        assert point.score == pytest.approx(sum(found[task]["value"] for task in found) / point.tasks)
        ratios = [found[task]["value"] / individual[task] for task in found]
        assert point.normalised == pytest.approx(sum(ratios) / point.tasks)
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
    next((folder / "data/measures/studies/tasks/dare").iterdir()).unlink()
    with pytest.raises(InputError, match=r"data/measures/studies/tasks/dare/.*\.json: missing"):
        report_of_tasks.read(open_comparison())
