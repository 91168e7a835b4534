"""The suite's stages on a tiny configuration, run by the very commands of its dvc.yaml."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
import yaml
from datasets import load_from_disk
from PIL import Image
from safetensors.torch import load_file

from common.stages import read_settings
from common.training import Muon, epochs, learning_rate_share
from suite import tasks
from suite.data import pixel_hash
from suite.finetune import read_split
from suite.model import class_head, load_model, normalise
from suite.pretrain import draw_pool
from suite.settings import Settings
from suite.tasks import SUBJECTS, TASKS
from tests.examples.stages import (
    EXAMPLES,
    REPOSITORY,
    build_elsewhere,
    code_of,
    declared_code,
    differing,
    make_folder,
    run_stage,
    stages_in,
)

TASK = "signs"
TINY = {
    "seed": 5,
    "tasks": [TASK],
    "data": {"train": 40, "validation": 12, "test": 15},
    "pretrain": {"text_steps": 2, "image_steps": 3, "batch_size": 8, "clean_images": 6, "styled_images": 6},
    "finetune": {"steps": 3, "batch_size": 16, "learning_rate": 4.0e-4},
}


def build(folder: Path) -> None:
    """Run the three stages' commands in the folder."""
    make_folder(folder, "suite", TINY)
    with stages_in(folder):
        for name in ("data", "pretrain", "finetune"):
            run_stage("suite", name, TASK)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny suite."""
    folder = tmp_path_factory.mktemp("suite")
    build(folder)
    return folder / "suite"


@pytest.mark.parametrize("stage", ["data", "pretrain", "finetune"])
def test_a_stage_depends_on_all_the_code_it_runs(stage: str) -> None:
    assert declared_code("suite", stage) == code_of("suite", f"suite.{stage}")


@pytest.mark.drill
def test_building_again_in_another_process_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build_elsewhere("test_suite_stages", tmp_path)
    assert differing(built, tmp_path / "suite") == []


def test_a_saved_data_set_holds_the_drawn_pixels_and_the_names_of_its_classes(built: Path) -> None:
    saved = load_from_disk(built / "datasets" / TASK)
    hashes = json.loads((built / "datasets" / TASK / "pixels.json").read_text())
    for split, count in TINY["data"].items():
        pixels, labels = tasks.draw(TASK, split, TINY["seed"], count)
        images, saved_labels = read_split(saved[split])
        assert torch.equal(images, normalise(pixels))
        assert saved_labels.tolist() == labels.tolist()
        assert saved[split].features["label"].names == TASKS[TASK].CLASS_NAMES
        assert hashes[split] == pixel_hash(pixels, labels)


def test_open_clip_opens_the_base_with_the_saved_weights(built: Path) -> None:
    base = built / "hub" / "base"
    saved = load_file(base / "open_clip_model.safetensors")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{base}")
    opened = model.state_dict()
    assert opened.keys() == saved.keys()
    assert all(torch.equal(opened[name], saved[name]) for name in saved)
    pixels, _ = tasks.draw(TASK, "test", seed=0, count=1)
    torch.testing.assert_close(preprocess(Image.fromarray(pixels[0])), normalise(pixels)[0])


def test_a_fine_tuned_checkpoint_holds_the_image_tower_alone_and_moved(built: Path) -> None:
    base = load_file(built / "hub" / "base" / "open_clip_model.safetensors")
    tuned = load_file(built / "hub" / TASK / "open_clip_model.safetensors")
    assert set(tuned) == {name for name in base if name.startswith("visual.")}
    assert all(tuned[name].shape == base[name].shape for name in tuned)
    assert all(not torch.equal(tuned[name], base[name]) for name in tuned if tuned[name].ndim == 2)


def test_a_class_head_is_the_scaled_mean_direction_of_the_class_s_prompts(built: Path) -> None:
    model, tokenizer = load_model(built / "hub" / "base")
    head = class_head(model, tokenizer, ["red", "blue"], ["a {} sign.", "{}"])
    with torch.no_grad():
        features = [model.encode_text(tokenizer([prompt]), normalize=True)[0] for prompt in ("a blue sign.", "blue")]
    mean = sum(features) / 2
    torch.testing.assert_close(head[1], model.logit_scale.exp() * mean / mean.norm())


def test_pretraining_sees_even_classes_only_of_the_tasks_own_style_and_no_handwriting() -> None:
    settings = read_settings(EXAMPLES / "suite/params.yaml", Settings).pretrain
    small = type(settings)(text_steps=0, image_steps=0, batch_size=1, clean_images=10, styled_images=40)
    pool = draw_pool(0, small)
    styled = {name: (tasks.draw(name, "train", 1000, 40)[1] % 2 == 0).sum() for name in TASKS if name != "digits"}
    assert len(pool.images) == len(pool.concepts) == 10 * len(SUBJECTS) + sum(styled.values())
    of_digits = pool.images[pool.concepts < 10]
    assert torch.equal(of_digits, normalise(tasks.draw("digits", "clean", 0, 10)[0]))
    assert int(pool.concepts.max()) < sum(len(subject.CLASS_NAMES) for subject in SUBJECTS.values())


def test_the_learning_rate_rises_linearly_and_falls_by_a_cosine() -> None:
    shares = [learning_rate_share(step, steps=10, warm_up=2) for step in range(10)]
    assert shares[:3] == [0.5, 1.0, 1.0]
    assert shares[6] == pytest.approx(0.5)
    assert shares[2:] == sorted(shares[2:], reverse=True)


def test_a_pass_over_the_images_repeats_none() -> None:
    batches = epochs(count=10, batch_size=3, generator=torch.Generator().manual_seed(0))
    passes = [torch.cat([next(batches) for _ in range(3)]).tolist() for _ in range(2)]
    assert all(len(set(indices)) == 9 for indices in passes)
    assert passes[0] != passes[1]


def test_an_unknown_setting_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({**TINY, "finetune": {**TINY["finetune"], "stepps": 3}}))
    with pytest.raises(TypeError, match="stepps"):
        read_settings(tmp_path / "params.yaml", Settings)


def test_the_comparison_asks_with_the_prompts_that_the_tasks_were_trained_with() -> None:
    compared = yaml.safe_load((REPOSITORY / "params.yaml").read_text())["tasks"]
    declared = yaml.safe_load((EXAMPLES / "suite/params.yaml").read_text())["tasks"]
    assert list(compared) == declared == list(TASKS)
    for name, task in compared.items():
        assert task["source"] == f"examples/suite/hub/{name}"
        assert task["data"] == {"source": f"examples/suite/datasets/{name}", "templates": TASKS[name].TEMPLATES}


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)], ids=str)
def test_muon_steps_as_torchs_does_to_the_rounding_of_bfloat16(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start, target = (torch.randn(shape, generator=generator) for _ in range(2))
    options = {"lr": 0.01, "weight_decay": 0.05, "momentum": 0.95}
    reached = []
    for make in (Muon, torch.optim.Muon):
        matrix = torch.nn.Parameter(start.clone())
        optimiser = make([matrix], **options)
        for _ in range(10):
            optimiser.zero_grad()
            (matrix - target).square().sum().backward()
            optimiser.step()
        reached.append(matrix.detach() - start)
    ours, torchs = reached
    assert (ours - torchs).norm() < 0.02 * torchs.norm()
