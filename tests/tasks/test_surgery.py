"""The stage that trains bottlenecks, what a merge keeps of them, and the evaluation through them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from merganser.at_run_time.additions.bottlenecks import read_bottleneck
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.tasks import evaluate, extract_difference, merge
from merganser.tasks import surgery as stage
from tests.tasks.comparison import TASKS, inside, run_to_difference, write_params, write_sources

METHODS = {
    "average": {"method": "average", "reads": "deltas"},
    "surgery": {"method": "surgery", "reads": "surgery/x"},
    "none": {"method": "surgery", "reads": "surgery/none"},
}


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("surgery")
    write_params(folder, METHODS)
    params = yaml.safe_load((folder / "params.yaml").read_text())
    beside = {"of": "differences/x"}
    params |= {"differences": {"x": {"merged": "average"}}}
    params |= {"surgery": {"x": {**beside, "rank": 4, "steps": 60, "lr": 0.01}, "none": {**beside, "steps": 0}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    write_sources(folder / "sources")
    with inside(folder):
        run_to_difference("average")
        for task in TASKS:
            extract_difference.main(["x", task])
        for name in ("x", "none"):
            stage.main([name])
        for entry in METHODS:
            if entry != "average":
                merge.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
    return folder


def test_every_task_comes_nearer_to_its_own_features(carried: Path) -> None:
    trace = json.loads((carried / "data/surgery/x/trace.json").read_text())
    assert list(trace) == sorted(TASKS)
    for task in TASKS:
        losses = {int(step): loss for step, loss in trace[task]["losses"].items()}
        assert min(losses.values()) == losses[trace[task]["best_step"]] < 0.9 * losses[0]


def test_without_a_step_the_scores_are_those_of_the_merge_it_starts_from(carried: Path) -> None:
    for task in TASKS:
        found, expected = (carried / f"data/examples/{entry}/{task}.safetensors" for entry in ("none", "average"))
        assert found.read_bytes() == expected.read_bytes()
    changed = [carried / f"data/examples/{entry}" for entry in ("surgery", "average")]
    assert any(
        (changed[0] / f"{t}.safetensors").read_bytes() != (changed[1] / f"{t}.safetensors").read_bytes() for t in TASKS
    )


def test_a_merge_keeps_the_model_and_the_bottlenecks_and_counts_their_bytes(carried: Path) -> None:
    folder, average = carried / "data/merged/surgery", open_checkpoint(carried / "data/merged/average")
    merged = open_checkpoint(folder)
    assert merged.names == average.names
    assert all(torch.equal(merged.read(name), average.read(name)) for name in merged.names)
    trained = (carried / "data/surgery/x/bottlenecks.safetensors").read_bytes()
    assert (folder / "bottlenecks.safetensors").read_bytes() == trained
    values = sum(average.read(name).numel() for name in average.names if name.startswith("visual."))
    profile = json.loads((carried / "data/profiles/merge/surgery.json").read_text())
    assert profile["amr"] == pytest.approx(len(trained) / 3 / (4 * values))
    assert profile["surgery"] == {"forwards": 2 * 3 * 6, "backwards": 0}
    assert "`bottlenecks.safetensors`" in (folder / "README.md").read_text()
    found = read_bottleneck(folder, "red")
    assert found.down.shape == (4, 16)


def test_training_again_gives_the_same_bytes(carried: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(carried, tmp_path / "copy"))
    shutil.rmtree(folder / "data/surgery/x/state")
    with inside(folder):
        stage.main(["x"])
    for name in ("bottlenecks.safetensors", "trace.json"):
        assert (folder / "data/surgery/x" / name).read_bytes() == (carried / "data/surgery/x" / name).read_bytes()


@pytest.mark.parametrize("changed", ["lr", "validation"])
def test_what_was_kept_of_something_else_is_trained_anew(changed: str, carried: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(carried, tmp_path / "copy"))
    trained, kept = folder / "data/surgery/x/bottlenecks.safetensors", folder / "data/surgery/x/state/red.safetensors"
    first, before = trained.read_bytes(), kept.read_bytes()
    if changed == "lr":
        params = yaml.safe_load((folder / "params.yaml").read_text())
        params["surgery"]["x"]["lr"] = 0.02
        (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    else:
        shutil.rmtree(folder / "data/validation/dark")
        shutil.copytree(folder / "data/prepared/dark", folder / "data/validation/dark")
    with inside(folder):
        stage.main(["x"])
        after = trained.read_bytes()
        assert after != first
        assert (kept.read_bytes() != before) == (changed == "lr")  # of the other tasks nothing has changed
        shutil.rmtree("data/surgery/x")
        stage.main(["x"])
    assert trained.read_bytes() == after


def test_what_is_not_declared_is_refused(carried: Path) -> None:
    with inside(carried), pytest.raises(InputError, match='no "y" under surgery'):
        stage.main(["y"])
