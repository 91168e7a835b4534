"""Comparisons of image classifiers with heads of their own, from params.yaml to their scores, against transformers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import load_from_disk
from torch.nn import Linear
from transformers import AutoImageProcessor, AutoModel, AutoModelForImageClassification

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.loading import load_params
from merganser.config.tasks import task_mistakes
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from tests.tasks.comparison import inside, run_declared
from tests.tiny_clip import CLASSES, write_data_set
from tests.tiny_transformers import PROCESSORS, random_model

RESNET = "ResNetForImageClassification"
TASKS = {"dark": 20, "light": 21}  # pictures of each test split
SECTIONS: dict[str, dict[str, Any]] = {
    "statistics": {"gram": {"kind": "gram", "examples": 4}, "fisher": {"kind": "fisher", "examples": 4}},
    "differences": {"x": {"merged": "average"}},
    "routers": {"x": {"of": "differences/x"}},
    "surgery": {"x": {"of": "differences/x", "rank": 4, "steps": 20, "lr": 0.01}},
    "learned": {
        name: {"learner": name, "of": "deltas", "steps": 2, "every": 1, "batch_size": 4, "lr": 0.02}
        for name in ("adamerging", "wemoe")
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "base": {"method": "base", "reads": "deltas"},
    "average": {"method": "average", "reads": "deltas"},
    "tsv_m": {"method": "tsv_m", "reads": "svd"},
    "regmean": {"method": "regmean", "reads": "statistics/gram"},
    "fisher": {"method": "fisher", "reads": "statistics/fisher"},
    "adamerging": {"method": "adamerging", "reads": "learned/adamerging"},
    "individual": {"method": "individual", "reads": "deltas"},
    "twin": {"method": "twin", "reads": "routers/x"},
    "wemoe": {"method": "wemoe", "reads": "learned/wemoe"},
    "surgery": {"method": "surgery", "reads": "surgery/x"},
}
WHOLE = ("average", "tsv_m", "regmean", "fisher", "adamerging")  # a model is all that these make
ENTRIES = {"vit": list(METHODS), RESNET: [*WHOLE, "individual"]}
# a trunk's file has a pooler, which a classifier does without
MERGED = {"vit": ["embeddings.*", "encoder.*", "layernorm.*"], RESNET: ["*"]}

vit_alone = pytest.mark.parametrize("made", ["vit"], indirect=True)


def write_sources(folder: Path, kind: str) -> None:
    """Write a trunk without a head, and what was fine-tuned from it: heads of their own, and each its own pictures."""
    base = random_model(kind, 3)
    trunk = base.base_model
    AutoModel.from_config(base.config).save_pretrained(folder / "base")  # with the pooler that a classifier lacks
    whole = AutoModel.from_pretrained(folder / "base")
    whole.load_state_dict(trunk.state_dict(), strict=False)
    whole.save_pretrained(folder / "base")
    PROCESSORS[kind].save_pretrained(folder / "base")
    for seed, (task, count) in enumerate(TASKS.items()):
        model = random_model(kind, 3, seed=seed + 1)
        model.base_model.load_state_dict(trunk.state_dict())
        torch.manual_seed(seed)
        with torch.no_grad():
            for value in model.base_model.parameters():
                value.add_(0.1 * torch.randn_like(value))
            for name, measured in model.named_buffers():
                if name.endswith("running_mean"):
                    measured.add_(0.1 * torch.randn_like(measured))
        model.config.id2label = dict(enumerate(CLASSES))
        PROCESSORS[kind].save_pretrained(folder / task)
        write_data_set(folder / f"{task}-data", {"validation": 6, "test": count}, size=24)
        with torch.no_grad():  # so that it does not say one class of all
            head = next(part for part in model.classifier.modules() if isinstance(part, Linear))
            head.bias.sub_(logits_of(model, folder, task).mean(dim=0))
        model.save_pretrained(folder / task)


@pytest.fixture(scope="module", params=list(ENTRIES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Run the stages on tasks of which params.yaml says no more than where models and data lie."""
    entries, folder = ENTRIES[request.param], tmp_path_factory.mktemp("vision")
    write_sources(folder / "sources", request.param)
    read = {tuple(METHODS[entry]["reads"].split("/")) for entry in entries} | {("differences", "x")}
    sections = {
        section: {name: value for name, value in about.items() if (section, name) in read}
        for section, about in SECTIONS.items()
    }
    params: dict[str, Any] = {section: about for section, about in sections.items() if about}
    params["parameters"] = {"merged": MERGED[request.param], "matrices": "linear"}
    run_declared(folder, TASKS, params | {"methods": {entry: METHODS[entry] for entry in entries}})
    return folder, entries


@pytest.fixture
def folder(made: tuple[Path, list[str]]) -> Iterator[Path]:
    with inside(made[0]):
        yield made[0]


def logits_of(model: Any, sources: Path, task: str) -> torch.Tensor:
    """Score a task's test pictures by a plain loop over transformers."""
    processor = AutoImageProcessor.from_pretrained(sources / task, backend="pil")
    pixels = processor(list(load_from_disk(sources / f"{task}-data")["test"]["image"]), return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(**pixels).logits
    return logits


def labels_of(task: str) -> list[int]:
    return list(load_from_disk(f"sources/{task}-data")["test"]["label"])


def test_family_kind_and_heads_follow_from_the_files(folder: Path) -> None:
    params = load_params()
    assert (params.base.family, params.base.heads) == ("vision", ["classifier.*"])
    assert {task.kind for task in params.tasks.values()} == {"image_classifier"}


@pytest.mark.parametrize("task", TASKS)
def test_the_individual_models_score_as_transformers_itself_does(folder: Path, task: str) -> None:
    found = logits_of(AutoModelForImageClassification.from_pretrained(f"sources/{task}"), Path("sources"), task).argmax(
        dim=1
    )
    score = json.loads(Path(f"data/metrics/individual/{task}.json").read_text())
    assert score["value"] == np.mean(found.numpy() == labels_of(task))
    assert score["count"] == TASKS[task]
    results = read_results(Path(f"data/examples/individual/{task}.safetensors"))
    assert np.array_equal(np.asarray(results.prediction), found.numpy())
    assert len(set(found.tolist())) > 1  # it does not always say the same


@pytest.mark.parametrize("task", TASKS)
def test_a_merge_under_a_tasks_head_scores_as_transformers_itself_does(
    made: tuple[Path, list[str]], folder: Path, task: str
) -> None:
    said = set()
    for entry in (each for each in made[1] if each in WHOLE):
        model = AutoModelForImageClassification.from_pretrained(f"sources/{task}")
        trunk = AutoModel.from_pretrained(f"data/merged/{entry}")
        missing = model.base_model.load_state_dict(trunk.state_dict(), strict=False)
        assert not missing.missing_keys
        found = logits_of(model, Path("sources"), task).argmax(dim=1)
        score = json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())
        assert score["value"] == np.mean(found.numpy() == labels_of(task))
        results = read_results(Path(f"data/examples/{entry}/{task}.safetensors"))
        assert np.array_equal(np.asarray(results.prediction), found.numpy())
        said.add(tuple(found.tolist()))
    assert len(said) > 1  # merges differ


def test_heads_are_no_part_of_a_merge_and_names_are_those_of_the_base(folder: Path) -> None:
    merged, base = open_checkpoint(Path("data/merged/average")), open_checkpoint(Path("sources/base"))
    assert merged.names == base.names
    tasks = [open_checkpoint(Path("sources") / task) for task in TASKS]
    prefix = next(name for name in tasks[0].names if not name.startswith("classifier")).partition(".")[0]
    for name in merged.names:
        if f"{prefix}.{name}" in tasks[0]:
            values = [task.read(f"{prefix}.{name}") for task in tasks]
            if values[0].is_floating_point():
                expected = sum(value.double() for value in values) / 2
                torch.testing.assert_close(merged.read(name).double(), expected, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(merged.read(name), base.read(name))


@vit_alone
def test_what_is_added_at_run_time_is_scored_too(folder: Path) -> None:
    trace = json.loads(Path("data/surgery/x/trace.json").read_text())
    for task in TASKS:
        losses = {int(step): loss for step, loss in trace[task]["losses"].items()}
        assert losses[trace[task]["best_step"]] < losses[0]
        for entry in ("twin", "wemoe", "surgery"):
            score = json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())
            assert score["count"] == TASKS[task]


@vit_alone
@pytest.mark.parametrize("entry", ["twin", "wemoe", "surgery"])
def test_the_lines_on_its_card_run_what_is_added(
    folder: Path, tmp_path: Path, entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "data/merged" / entry, tmp_path / "merged")
    shutil.copy(folder / "data/heads/dark.safetensors", tmp_path / "merged")
    load_from_disk(folder / "sources/dark-data")["test"][0]["image"].save(tmp_path / "merged/picture.png")
    lines = (tmp_path / "merged/README.md").read_text().partition("```python\n")[2].partition("```")[0]
    with inside(tmp_path / "merged"):
        exec(lines, {})
    assert capsys.readouterr().out in [f"tensor([{number}])\n" for number in range(len(CLASSES))]


@vit_alone
def test_another_kind_of_pictures_is_refused_with_the_one_that_the_family_does(folder: Path) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    for family, kind, data in (
        ("vision", "image_classification", {"templates": ["a {}."]}),
        ("clip", "image_classifier", {}),
    ):
        task = {"source": "x", "kind": kind, "data": {"source": "y", **data}}
        other = params | {"base": params["base"] | {"family": family}, "tasks": {"dark": task}}
        Path("other.yaml").write_text(yaml.safe_dump(other))
        fitting = "image_classifier" if family == "vision" else "image_classification"
        said = f"family {family} does not support the kind of task {kind}; it supports {fitting}"
        try:
            found = str([mistake.text for mistake in task_mistakes(load_params(Path("other.yaml")))])
        except InputError as error:
            found = str(error)
        assert said in found
