"""The stage that learns, on the tiny comparison, and the merge that applies what it learned."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.inputs.deltas import open_deltas
from merganser.inputs.learned import read_learned
from merganser.learning.batches import Batches
from merganser.models import open_network
from merganser.tasks import learn, merge, prepare_validation, surgery
from merganser.tasks.stages import STAGES, ComparisonSizes
from tests import PYTHONPATH
from tests.support import python
from tests.tasks.comparison import TASKS, inside

READ = ("base", "datasets", "deltas", "heads", "sources")
STEPS = {"learner": "adamerging", "of": "deltas", "steps": 4, "every": 2, "batch_size": 2, "lr": 0.02}
LEARNED: dict[str, dict[str, Any]] = {
    "ada": STEPS,
    "plus_plus": {**STEPS, "plus_plus": True, "granularity": "task"},
    "long": {**STEPS, "steps": 12, "every": 1},
    "regions": {**STEPS, "learner": "localize_stitch_learned", "lr": 2.5, "examples": 2, "density": 0.3},
    "blocks": {"learner": "regmean_plus_plus", "of": "deltas", "examples": 4, "ratio": 0.9},
}
METHODS = {name: {"method": about["learner"], "reads": f"learned/{name}"} for name, about in LEARNED.items()}
ROOT = Path(__file__).parents[2]
GAIN = '''
"""One learned factor for the sum of all deltas."""
from dataclasses import dataclass

import torch

from merganser.inputs.layers import LayerSource
from merganser.learning import Form, Learner, learned_by
from merganser.learning.settings import LearnerSettings
from merganser.merging.method import method
from merganser.operators.sums import inner_products_with_gradient, scaled_sum


class Settings(LearnerSettings):
    first: float = 0.3


@dataclass(frozen=True)
class Gain(Form):
    def start(self):
        return {"gain": torch.tensor([self.settings.first], dtype=torch.float64)}

    def form(self, values, step=None):
        return lambda layer: scaled_sum(layer.deltas, float(values["gain"]))

    def pull(self, values, step, gradients):
        each = self.layers.map(lambda one: inner_products_with_gradient(one.deltas, gradients[one.name]).sum())
        return {"gain": sum(each).reshape(1)}


@method(
    family="learned",
    formula=r"g \\sum_t \\Delta_t",
    paper="none",
    law="before the first step it is task arithmetic",
    involvement="TTA",
    learner=Learner(Settings, Gain),
)
def gain(layers: LayerSource):
    """Add the tasks' deltas with one learned factor."""
    learned = learned_by(layers, "gain")
    return Gain(layers, Settings(**learned.settings)).form(learned.values)
'''
# The stages with it, and what a mistake in its settings is told.
BY_GAIN = """
from pathlib import Path
from merganser.config.loading import load_params
from merganser.tasks import learn, merge
learn.main(["g"])
merge.main(["g"])
load_params(Path("mistaken.yaml"))
"""
KILLED = """
import sys
from importlib import import_module
from tests.tasks.killing import run_until
stage, name, file, times = sys.argv[1:]
run_until(import_module(stage).main, [name], file, int(times))
"""


def change(**sections: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    Path("params.yaml").write_text(yaml.safe_dump(params | sections, sort_keys=False))


@pytest.fixture(scope="module")
def prepared(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Carry a copy of the comparison as far as what learning reads."""
    folder = tmp_path_factory.mktemp("learned")
    shutil.copyfile(comparison / "params.yaml", folder / "params.yaml")
    for name in READ:
        shutil.copytree(comparison / "data" / name, folder / "data" / name)
    with inside(folder):
        change(learned=LEARNED, methods=METHODS)
        for task in TASKS:
            prepare_validation.main([f"{task}-split"])
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    """Work in a copy of it."""
    shutil.copytree(prepared, tmp_path / "copy")
    with inside(tmp_path / "copy"):
        yield Path()


def trace(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"data/learned/{name}/result/trace.json").read_text())
    return found


def content(name: str) -> dict[str, bytes]:
    root = Path("data/learned") / name
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def merged(coefficients: Tensor) -> dict[str, Tensor]:
    """Add the tasks' deltas to the base, each times its coefficient for a parameter."""
    base, deltas = open_checkpoint(Path("data/base")), open_deltas(Path("data/deltas"), list(TASKS))
    model = {name: base.read(name) for name in base.names}
    for name, row in zip(deltas.names, coefficients.expand(len(deltas.names), -1).tolist(), strict=True):
        for task, coefficient in zip(deltas.tasks, row, strict=True):
            model[name] = model[name] + coefficient * deltas.files[task].delta(name)
    return model


def mean_entropy(model: dict[str, Tensor]) -> float:
    """Add up the tasks' mean entropies on the fixed examples, by the formula."""
    network, total = open_network("open_clip", Path("data/base")), 0.0
    network.load(model.items())
    network.head([["a dark image."], ["a light image."], ["a red image."]])  # type: ignore[attr-defined]
    for task in TASKS:
        data = Prepared(Path("data/validation") / task)
        rows = [row for batch in Batches(0, task, "validation", len(data), 2).fixed() for row in batch]
        p = softmax(network.logits(data.rows(["pixels"], rows)).double(), dim=1)
        total += float(-(p * p.log()).sum(1).mean())
    return total


def test_it_starts_at_the_entropy_of_task_arithmetic_and_ends_lower(folder: Path) -> None:
    learn.main(["ada"])
    found = trace("ada")
    checks = {check["step"]: check["loss"] for check in found["checks"]}
    assert list(checks) == [0, 2, 4]
    assert len(found["losses"]) == 4
    assert checks[0] == pytest.approx(mean_entropy(merged(torch.full((1, 3), 0.3))), rel=1e-5)
    values = read_learned(Path("data/learned/ada/result"), sorted(TASKS)).values["coefficients"]
    assert checks[found["best_step"]] == pytest.approx(mean_entropy(merged(values)), rel=1e-5)
    assert checks[found["best_step"]] < checks[0]


@pytest.mark.parametrize("name", ["ada", "plus_plus"])
def test_the_merge_adds_the_deltas_with_the_learned_coefficients(name: str, folder: Path) -> None:
    learn.main([name])
    merge.main([name])
    profile = json.loads(Path(f"data/profiles/merge/{name}.json").read_text())
    assert profile["learned"] == trace(name)
    assert (trace(name)["forwards"], trace(name)["backwards"]) == (4 * 3 * 2 + 3 * 3 * 6, 4 * 3 * 2)
    found = open_checkpoint(Path("data/merged") / name)
    values = read_learned(Path("data/learned") / name / "result", sorted(TASKS)).values["coefficients"]
    assert values.shape == (
        (1, 3) if name == "plus_plus" else (len(open_deltas(Path("data/deltas"), ["red"]).names), 3)
    )
    expected = merged(values)
    apart = [float((found.read(each) - expected[each]).abs().max()) for each in found.names]
    assert (max(apart) > 1e-3) == (name == "plus_plus")  # what it trims is not there
    assert name == "plus_plus" or max(apart) < 1e-6


@pytest.mark.parametrize("name", ["ada", "regions"])
def test_learning_again_and_in_two_parts_gives_the_same_bytes(name: str, folder: Path) -> None:
    learn.main([name])
    first = content(name)
    learn.main([name])
    assert content(name) == first
    shutil.rmtree(f"data/learned/{name}")
    for steps in (2, 4):
        change(learned={name: {**LEARNED[name], "steps": steps}}, methods={name: METHODS[name]})
        learn.main([name])
    assert content(name) == first


def own_loss(regions: dict[str, Tensor]) -> float:
    """Add up the cross-entropies of the tasks' own models, and the share that is kept, on all of the few examples."""
    base, deltas = open_checkpoint(Path("data/base")), open_deltas(Path("data/deltas"), list(TASKS))
    network, total = open_network("open_clip", Path("data/base")), 0.0
    count = sum(each[0].numel() for each in regions.values())
    for number, task in enumerate(deltas.tasks):
        model, kept = {name: base.read(name) for name in base.names}, 0
        for name, region in regions.items():
            own = region[number].reshape(model[name].shape)
            model[name] = model[name] + own * deltas.files[task].delta(name)
            kept += int(own.sum())
        network.load(model.items())
        network.head([["a dark image."], ["a light image."], ["a red image."]])  # type: ignore[attr-defined]
        data = Prepared(Path("data/validation") / task)
        logits = network.logits(data.rows(["pixels"], range(len(data))))
        total += float(cross_entropy(logits, data.array("label"))) + kept / count
    return total


def test_regions_are_learned_from_labels_by_each_tasks_own_model_and_stitched(folder: Path) -> None:
    learn.main(["regions"])
    merge.main(["regions"])
    found, checks = trace("regions"), {check["step"]: check["loss"] for check in trace("regions")["checks"]}
    assert (found["forwards"], found["backwards"]) == (4 * 3 * 2 + 3 * 3 * 6, 4 * 3 * 2)
    deltas = open_deltas(Path("data/deltas"), list(TASKS))
    vectors = torch.stack(
        [torch.cat([file.delta(n).flatten() for n in deltas.names]) for file in deltas.files.values()]
    )
    cut = vectors.abs().sort(dim=1, descending=True).values[:, int(0.3 * vectors.shape[1]) - 1 :][:, :1]
    sizes = [prod(deltas.shapes[name]) for name in deltas.names]
    first = dict(zip(deltas.names, (vectors.abs() >= cut).split(sizes, dim=1), strict=True))
    learned = read_learned(Path("data/learned/regions/result"), sorted(TASKS)).values
    last = {name: learned[name].reshape(3, -1) > 0 for name in deltas.names}
    assert checks[0] == pytest.approx(own_loss(first), rel=1e-5)
    assert checks[found["best_step"]] == pytest.approx(own_loss(last), rel=1e-5)
    assert checks[found["best_step"]] < checks[0]
    base, merged = open_checkpoint(Path("data/base")), open_checkpoint(Path("data/merged/regions"))
    for name, own in zip(deltas.names, vectors.split(sizes, dim=1), strict=True):
        mean = (own * last[name]).sum(0) / last[name].sum(0).clamp(min=1)
        expected = base.read(name) + mean.reshape(base.spec(name).shape)
        torch.testing.assert_close(merged.read(name), expected, rtol=1e-5, atol=1e-6)


def test_too_few_labelled_examples_of_a_class_are_refused_by_its_name(folder: Path) -> None:
    change(learned={"regions": {**LEARNED["regions"], "examples": 3}}, methods={"regions": METHODS["regions"]})
    with pytest.raises(
        InputError, match=r"dark: 2 examples of the class 'dark', and learning asks for 3; lower `examp"
    ):
        learn.main(["regions"])


def test_unlabelled_data_are_refused_where_labels_are_learned_from_and_not_elsewhere(folder: Path) -> None:
    file = Path("data/validation/light/label.safetensors")
    labels = SafetensorsFile(file).read("label")
    labels[4] = -1
    save_tensors(file, {"label": labels})
    learn.main(["ada"])
    with pytest.raises(
        InputError, match=r"light: example 4 has the label -1; the classes are 0 to 2: the labels are needed"
    ):
        learn.main(["regions"])


@pytest.mark.parametrize("changed", ["lr", "seed", "data/validation/red/pixels.safetensors", "data/deltas/dark"])
def test_what_it_follows_from_changes_what_is_learned(changed: str, folder: Path) -> None:
    learn.main(["ada"])
    first = content("ada")
    if changed == "lr":
        change(learned={"ada": {**STEPS, "lr": 0.03}}, methods={"ada": METHODS["ada"]})
    elif changed == "seed":
        change(seed=1)
    elif changed == "data/deltas/dark":
        shutil.copyfile("data/deltas/light.safetensors", "data/deltas/dark.safetensors")
    else:
        save_tensors(Path(changed), {"pixels": 255 - SafetensorsFile(Path(changed)).read("pixels")})
    learn.main(["ada"])
    after = content("ada")
    shutil.rmtree("data/learned/ada")
    learn.main(["ada"])
    assert after == content("ada") != first


def test_killed_in_the_middle_it_goes_on_to_the_same_bytes(folder: Path) -> None:
    learn.main(["long"])
    whole = content("long")
    shutil.rmtree("data/learned/long")
    state = Path("data/learned/long/state/state.safetensors")
    for writes, reached in ((5, 3), (5, 7)):  # the state before the first step is written once
        kill(learn, "long", state.name, writes)
        assert steps_of(state) == reached
    assert not Path("data/learned/long/result").exists()
    learn.main(["long"])
    assert content("long") == whole


def test_a_merge_block_by_block_is_written_with_its_blocks_and_merged_as_it_is(folder: Path) -> None:
    learn.main(["blocks"])
    merge.main(["blocks"])
    found = trace("blocks")
    assert found["settings"] == {"learner": "regmean_plus_plus", "device": "cpu", "examples": 4, "ratio": 0.9}
    names = [block["block"] for block in found["blocks"]]
    assert names == ["visual.conv1.weight", "visual.transformer.resblocks.0", "visual.proj"]
    assert (found["forwards"], found["backwards"]) == (len(TASKS) * 4 * len(names), 0)
    profile = json.loads(Path("data/profiles/merge/blocks.json").read_text())
    assert profile["learned"] == found
    base, merged = open_checkpoint(Path("data/base")), open_checkpoint(Path("data/merged/blocks"))
    deltas = open_deltas(Path("data/deltas"), list(TASKS))
    values = read_learned(Path("data/learned/blocks/result"), sorted(TASKS)).values
    assert values.keys() == {name for name, kind in deltas.kinds.items() if kind == "matrix"}
    for name in deltas.names:
        mean = torch.stack([file.delta(name) for file in deltas.files.values()]).mean(0)
        delta = values.get(name, mean).reshape(base.spec(name).shape)
        torch.testing.assert_close(merged.read(name), base.read(name) + delta, rtol=1e-6, atol=1e-7)
        assert torch.equal(values.get(name, mean).flatten(), mean.flatten()) == (name not in values)


def test_a_merge_block_by_block_is_expected_to_take_half_a_pass_a_block(folder: Path) -> None:
    known = ComparisonSizes(load_params(Path("params.yaml")), {}, {}, 50, dict.fromkeys(TASKS, 100), {})
    assert STAGES["learn"].tokens(known, "blocks") == 12 / 2 * len(TASKS) * 4 * 50


def test_a_merge_block_by_block_loses_one_block_at_most_to_a_kill(folder: Path) -> None:
    learn.main(["blocks"])
    whole = content("blocks")
    shutil.rmtree("data/learned/blocks")
    kept = Path("data/learned/blocks/state/visual.conv1.weight.safetensors")
    for killed_at in ("visual.transformer.resblocks.0.safetensors", "visual.proj.safetensors"):
        kill(learn, "blocks", killed_at)
        assert kept.is_file()
        assert not Path("data/learned/blocks/result").exists()
    first = kept.stat().st_mtime_ns
    learn.main(["blocks"])
    assert kept.stat().st_mtime_ns == first
    assert content("blocks") == whole


def test_other_settings_merge_all_blocks_again(folder: Path) -> None:
    learn.main(["blocks"])
    first = content("blocks")
    change(learned={"blocks": {**LEARNED["blocks"], "ratio": 0.5}}, methods={"blocks": METHODS["blocks"]})
    learn.main(["blocks"])
    after = content("blocks")
    assert all(after[name] != first[name] for name in first if name.startswith("state/"))
    shutil.rmtree("data/learned/blocks")
    learn.main(["blocks"])
    assert content("blocks") == after


def test_bottlenecks_that_are_trained_lose_one_task_at_most_to_a_kill(folder: Path) -> None:
    change(
        methods=METHODS | {"average": {"method": "average", "reads": "deltas"}},
        differences={"x": {"merged": "average"}},
        surgery={"x": {"of": "differences/x", "steps": 20}},
    )
    shutil.copytree("data/base", "data/differences/x/base")
    for task in TASKS:
        shutil.copyfile(f"data/deltas/{task}.safetensors", f"data/differences/x/{task}.safetensors")
    out = Path("data/surgery/x")
    kept, result = out / "state/dark.safetensors", "bottlenecks.safetensors"
    for killed_at in ("light.safetensors", result):  # in the second of three tasks, and after the last
        kill(surgery, "x", killed_at)
        assert kept.is_file()
        assert not (out / result).exists()
    first = kept.stat().st_mtime_ns
    surgery.main(["x"])
    assert kept.stat().st_mtime_ns == first
    again = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(out)
    surgery.main(["x"])
    assert again == {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert json.loads((out / "cost.json").read_text())["forwards"] == 3 * 6 * 2


def kill(stage: ModuleType, name: str, file: str, times: int = 1) -> None:
    """Run a stage in a process of its own, which is killed when it is about to give a file its name the n-th time."""
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    command = [*python(), "-c", KILLED, stage.__name__, name, f"/{file}", str(times)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL


def steps_of(state: Path) -> int:
    """Read how far a state is."""
    return int(json.loads(SafetensorsFile(state).metadata["merganser"])["step"])


def test_a_merge_refuses_what_was_learned_for_other_tasks(folder: Path) -> None:
    learn.main(["ada"])
    params = yaml.safe_load(Path("params.yaml").read_text())
    change(tasks={task: about for task, about in params["tasks"].items() if task != "red"})
    with pytest.raises(InputError, match="learned for dark, light, red, not for dark, light; learn it again"):
        merge.main(["ada"])


def test_a_merge_of_what_was_never_learned_says_what_to_run(folder: Path) -> None:
    with pytest.raises(InputError, match=r"trace.json: missing; run the stage that writes it first"):
        merge.main(["ada"])


def test_a_learner_is_one_module_that_nothing_else_names(folder: Path, tmp_path: Path) -> None:
    for package in ("merganser", "tasks"):
        shutil.copytree(ROOT / package, tmp_path / "code" / package, ignore=shutil.ignore_patterns("*.pyc.*"))
    (tmp_path / "code/merganser/methods/gain.py").write_text(GAIN)
    sections: dict[str, Any] = {
        "learned": {"g": {**STEPS, "learner": "gain"}},
        "methods": {"g": {"method": "gain", "reads": "learned/g"}},
    }
    change(**sections)
    sections["learned"]["g"]["firstt"] = 0.5
    mistaken = yaml.safe_load(Path("params.yaml").read_text()) | sections
    Path("mistaken.yaml").write_text(yaml.safe_dump(mistaken))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "code")}
    done = subprocess.run([*python(), "-c", BY_GAIN], env=environment, capture_output=True, text=True)
    assert 'learned.g.firstt: unknown key; did you mean "first"?' in done.stderr
    checks = {check["step"]: check["loss"] for check in trace("g")["checks"]}
    assert checks[trace("g")["best_step"]] < checks[0]
    assert checks[0] == pytest.approx(mean_entropy(merged(torch.full((1, 3), 0.3))), rel=1e-5)
    gain = read_learned(Path("data/learned/g/result"), sorted(TASKS)).values["gain"]
    found, expected = open_checkpoint(Path("data/merged/g")), merged(gain.reshape(1, 1).expand(1, 3))
    for name in found.names:
        torch.testing.assert_close(found.read(name), expected[name], msg=name)
