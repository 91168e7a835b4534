"""A comparison of timm's classifiers, from params.yaml to scores, against timm itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from datasets import load_from_disk
from huggingface_hub import ModelCard

from merganser.checkpoints.kinds import is_head
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.headers import check_sources
from merganser.config.loading import complete_file, load_params
from merganser.errors import InputError
from merganser.tasks import evaluate, extract, fetch, merge, prepare
from tests.tasks.comparison import inside
from tests.timm_models import SIDE, edit_config, random_timm
from tests.tiny_clip import CLASSES, write_data_set

HEADS = {"timm/resnet": ["fc.*"], "timm/convnext": ["head.fc.*"], "timm/vit": ["head.weight", "head.bias"]}
TASKS = ("dark", "light")


def write_comparison(folder: Path, kind: str, of_base: int = 0, **base_says: Any) -> None:
    """Write a base with so many classes, models tuned from it with heads of their own, pictures and params.yaml."""
    base = random_timm(kind, of_base)
    base.save_pretrained(folder / "base")
    for seed, task in enumerate(TASKS):
        model = random_timm(kind, 3, seed=seed + 1)
        own = model.state_dict()
        trunk = {name: value for name, value in base.state_dict().items() if value.shape == own[name].shape}
        with torch.no_grad():
            model.load_state_dict(own | {name: v + 0.02 * torch.rand_like(v) for name, v in trunk.items() if v.dim()})
            # so that it does not say one class of all
            model.model.get_classifier().bias.sub_(model(torch.randn(8, 3, SIDE, SIDE)).mean(dim=0))
        model.save_pretrained(folder / task)
        write_data_set(folder / f"{task}-data", {"test": 12 + seed, "validation": 6}, size=40)
    tasks = {task: {"source": task, "data": {"source": f"{task}-data"}} for task in TASKS}
    params = {"base": {"source": "base", **base_says}, "tasks": tasks, "methods": {"average": {}, "individual": {}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


def predictions(model: torch.nn.Module, task: str) -> np.ndarray:
    """Classify a task's test pictures by a plain loop over timm."""
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    pixels = torch.stack([transform(image) for image in load_from_disk(f"{task}-data")["test"]["image"]])
    with torch.inference_mode():
        return model.eval()(pixels).argmax(dim=1).numpy()


@pytest.fixture(scope="module", params=[*((kind, 0) for kind in HEADS), ("timm/resnet", 5)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("timm")
    kind, of_base = request.param
    write_comparison(path, kind, of_base, **({"heads": HEADS[kind]} if of_base else {}))
    return kind, path


def test_a_comparison_is_completed_and_scores_as_timm_does(folder: tuple[str, Path]) -> None:
    kind, path = folder
    with inside(path):
        complete_file(Path("params.yaml"))
        params = load_params()
        assert (params.base.family, params.base.heads) == ("timm", HEADS[kind])
        assert {task.kind for task in params.tasks.values()} == {"image_classifier"}
        check_sources(params, Path(), lambda path: False)
        fetch.main(["base"])
        for task in TASKS:
            for what in ("task", "data"):
                fetch.main([what, task])
            extract.main([task])
            prepare.main([task])
        for entry in params.methods:
            merge.main([entry])
        merged = open_checkpoint(Path("data/merged/average"))
        state = {name: merged.read(name) for name in merged.names if not is_head(name, HEADS[kind])}
        models = [open_checkpoint(Path(task)) for task in TASKS]
        for name, value in state.items():
            if value.is_floating_point():
                mean = sum(model.read(name).double() for model in models) / len(models)
                torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)
        for task in TASKS:
            own = timm.create_model(f"local-dir:{task}", pretrained=True)
            labels = load_from_disk(f"{task}-data")["test"]["label"]
            for entry, changes in (("individual", {}), ("average", state)):
                evaluate.main([entry, task])
                own.load_state_dict(own.state_dict() | changes)
                score = json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())
                assert score["value"] == np.mean(predictions(own, task) == labels)
        card = ModelCard.load(Path("data/merged/average/README.md")).data.to_dict()
        assert (card["library_name"], card["pipeline_tag"]) == ("timm", "image-classification")
        # the merge is a model of timm again
        timm.create_model("local-dir:data/merged/average", pretrained=True)


def test_a_base_with_a_head_for_other_classes_is_refused_with_the_key_to_set(tmp_path: Path) -> None:
    write_comparison(tmp_path, "timm/resnet", of_base=5)
    with inside(tmp_path):
        complete_file(Path("params.yaml"))
        with pytest.raises(InputError, match=r'fc\.bias has shape .*base\.heads: \["fc\.\*"\]'):
            check_sources(load_params(), Path(), lambda path: False)


def test_classes_in_another_order_than_the_heads_are_refused(tmp_path: Path) -> None:
    write_comparison(tmp_path, "timm/vit")
    edit_config(tmp_path / "dark", label_names=CLASSES[::-1])
    with inside(tmp_path):
        complete_file(Path("params.yaml"))
        with pytest.raises(InputError, match=r"tasks\.dark: the head has in another order: red, light, dark; the data"):
            check_sources(load_params(), Path(), lambda path: False)
