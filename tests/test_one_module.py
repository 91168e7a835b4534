"""A family of models and a kind of task, each a module that nothing else names: accepted, completed, run and carded."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from transformers import ViTConfig, ViTForImageClassification

from merganser import statistics
from merganser.at_run_time import addition_of, additions
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.headers import check_sources
from merganser.config.loading import complete_file, load_params
from merganser.errors import InputError
from merganser.evaluation import get_kind, kinds
from merganser.models import families, get_family
from merganser.report import sections
from merganser.statistics import kinds as statistic_kinds
from merganser.tasks import evaluate, extract, fetch, merge, prepare
from merganser.tasks.scoring import open_task
from merganser.tasks.stages import BASE, PREPARED, STAGES, ComparisonSizes
from tests.merges import merge_checkpoints
from tests.tasks.comparison import inside
from tests.tiny_clip import CLASSES, write_data_set
from tests.transformers_models import PICTURES

FAMILY = '''
"""ViT with a task's own head."""
import numpy as np
import torch
from transformers import AutoModelForImageClassification

from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.named_module import NamedModule
from merganser.models.naming import naming_of

MODEL_TYPES = ("vit",)
MERGED = ("vit.*",)
LIBRARY = "transformers"
PIPELINES = {"ForImageClassification": "image-classification"}
MAKE = AutoModelForImageClassification.from_config


class Vit(NamedModule):
    def pixels(self, images):
        return torch.stack([torch.from_numpy(np.array(image.resize((16, 16)))).permute(2, 0, 1) for image in images])

    @torch.inference_mode()
    def logits(self, inputs):
        return self.module(inputs["pixels"] / 255).logits

    @torch.inference_mode()
    def features(self, inputs):
        return self.module.vit(inputs["pixels"] / 255).last_hidden_state[:, 0]

    def forward(self, parameters, inputs):
        return self.with_parameters(parameters, lambda: self.module(inputs["pixels"] / 255).logits)


def open_network(folder, *, outputs=None, device="cpu", precision="float32") -> Vit:
    config = read_family_config("toy_vit", folder)
    config.num_labels = outputs or config.num_labels
    module = build(MAKE, config, folder, device, precision)
    return Vit(module, naming_of(module, folder))


def check(folder, checkpoint):
    check_parameter_names(MAKE, read_family_config("toy_vit", folder), folder, checkpoint, may_lack=("classifier.*",))
'''
KIND = '''
"""Pictures of one class each, by a task's own head."""
import torch

from merganser.evaluation.examples import compare_predictions
from merganser.evaluation.columns import check_images
from merganser.evaluation import KindSettings
from merganser.models import TakesImages

METRICS = ("accuracy",)
NEEDS = (TakesImages,)
TOKENS = 1000


class Settings(KindSettings):
    pass


def check_data(splits, settings, source):
    check_images(splits, source)


def columns(settings):
    return ("image", "label")


def classes(features, settings):
    return list(features["label"].names)


def outputs(classes, settings):
    return len(classes)


def prepare(rows, settings, network):
    yield {"pixels": network.pixels(rows["image"]), "label": torch.tensor(list(rows["label"]))}


def results(network, prepared, settings, metric, batch_size):
    found = [network.logits(batch).argmax(dim=1) for batch in prepared.batches(["pixels"], batch_size)]
    return compare_predictions(metric, torch.cat(found).numpy(), prepared.array("label").numpy())
'''
PARAMS = """
base: {source: models/base, family: toy_vit, heads: ["classifier.*"]}
tasks:
  task0: {source: models/task0, kind: toy_pictures, data: {source: pictures}}
  task1: {source: models/task1, kind: toy_pictures, data: {source: pictures}}
methods: {average: {}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work where two modules lie, which the packages of families and of kinds look into; models and data beside."""
    added = {families: ("toy_vit", FAMILY), kinds: ("toy_pictures", KIND)}
    for package, (name, text) in added.items():
        place = tmp_path / package.__name__
        place.mkdir()
        (place / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(place)])
    for seed, model in enumerate(("base", "task0", "task1")):
        torch.manual_seed(seed)
        made = ViTForImageClassification(ViTConfig(**PICTURES, id2label=dict(enumerate(CLASSES))))
        made.save_pretrained(tmp_path / "models" / model)
    write_data_set(tmp_path / "pictures", {"test": 12})
    (tmp_path / "params.yaml").write_text(PARAMS)
    with inside(tmp_path):
        yield tmp_path
    for package, (name, _) in added.items():
        sys.modules.pop(f"{package.__name__}.{name}", None)


def prepare_all() -> None:
    """Run what a merge and its evaluations read."""
    complete_file(Path("params.yaml"))
    fetch.main(["base"])
    for task in ("task0", "task1"):
        fetch.main(["task", task])
        fetch.main(["data", task])
        extract.main([task])
        prepare.main([task])


def test_a_family_in_one_module_is_accepted_and_completed_with_its_own_defaults(folder: Path) -> None:
    assert complete_file(Path("params.yaml"))
    written = yaml.safe_load(Path("params.yaml").read_text())
    assert written["parameters"] == {"merged": ["vit.*"], "matrices": "linear"}
    params = load_params(Path("params.yaml"))
    check_sources(params, Path(), lambda path: False)
    with pytest.raises(InputError, match=r"vit is not of the family encoder; set base\.family to toy_vit"):
        get_family("encoder").check(folder / "models/base", open_checkpoint(folder / "models/base"))


def test_what_an_example_of_a_kind_costs_is_asked_of_its_module(folder: Path) -> None:
    known = ComparisonSizes(
        load_params(Path("params.yaml")), {}, {"models/base": 4e6}, 50, {"task0": 100, "task1": 200}, {}
    )
    assert STAGES["evaluate"].tokens(known, "average-task1") == 200 * 1000


def test_a_merge_of_its_models_is_evaluated_and_carded(folder: Path) -> None:
    prepare_all()
    merge.main(["average"])
    evaluate.main(["average", "task0"])
    score = json.loads(Path("data/metrics/average/task0.json").read_text())
    assert (score["metric"], score["count"]) == ("accuracy", 12)
    models = {task: folder / "models" / task for task in ("task0", "task1")}
    merge_checkpoints("average", {}, folder / "models/base", models, folder / "out")
    for card in (Path("data/merged/average/README.md"), folder / "out/README.md"):
        data = ModelCard.load(card).data.to_dict()
        assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "image-classification")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (' * float("nan")', "the model's outputs are not finite"),
        ("[:, :1]", r"toy_vit\.py: logits has the shape \(12, 1\), not \(examples, \d\): correct it"),
        ("[:, 0]", r"toy_vit\.py: logits has the shape \(12,\), not"),
    ],
)
def test_scores_that_are_no_heads_are_refused_whatever_kind_reads_them(change: str, said: str, folder: Path) -> None:
    """A kind that takes the largest of them would find a class all the same."""
    (family,) = folder.glob("*/toy_vit.py")
    family.write_text(FAMILY.replace("255).logits\n\n    @torch", f"255).logits{change}\n\n    @torch"))
    prepare_all()
    merge.main(["average"])
    with pytest.raises(InputError, match=said):
        evaluate.main(["average", "task0"])


def test_inputs_that_are_neither_pictures_nor_texts_are_found_by_the_names_that_the_network_gives(folder: Path) -> None:
    def renamed(text: str) -> str:
        return text.replace("TakesImages,\n", "").replace("(TakesImages,)", "()").replace("pixels", "dots")

    named = "class Vit(NamedModule):\n    def inputs(self):\n        return ['dots']\n"
    family, kind = (next(folder.glob(f"*/{name}.py")) for name in ("toy_vit", "toy_pictures"))
    kind.write_text(renamed(KIND))
    for text, said in (
        (FAMILY.replace("class Vit(NamedModule):\n", named), None),
        (FAMILY, "needs a network's inputs"),
    ):
        family.write_text(renamed(text))
        sys.modules.pop("merganser.models.families.toy_vit", None)
        prepare_all()
        setup = open_task(load_params(Path("params.yaml")), "task0", PREPARED, BASE)
        with pytest.raises(InputError, match=said) if said else nullcontext():
            assert setup.features(5).shape == (12, 16)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_n"),
        ("raise SystemExit('x')", "cannot be imported: SystemExit: x"),
        ("def f(:", "(cannot be imported: SyntaxError|not Python): invalid syntax"),
        ("", "lacks [A-Za-z_, ]*; write what [A-Za-z]* in merganser"),
    ],
)
@pytest.mark.parametrize(
    ("package", "found"),
    [
        (families, get_family),
        (kinds, get_kind),
        (statistic_kinds, statistics.get_kind),
        (additions, lambda name: addition_of(Path())),
        (sections, lambda name: sections.sections()),
    ],
)
def test_a_module_that_cannot_be_one_is_named(
    package: ModuleType, found: Any, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(f"{text}\n")
    (tmp_path / "broken.txt").touch()  # as a merge has it that needs the addition
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    where = f"{package.__name__.replace('.', '/')}/broken\\.py"
    with inside(tmp_path), pytest.raises(InputError, match=f"^{where}: {said}"):
        found("broken")
    sys.modules.pop(f"{package.__name__}.broken", None)


def test_what_a_family_computes_and_cards_read_is_refused_before_work(folder: Path) -> None:
    (family,) = folder.glob("*/toy_vit.py")
    family.write_text(FAMILY.replace('LIBRARY = "transformers"', 'LIBRARY = str("transformers")'))
    with pytest.raises(InputError, match=r"toy_vit\.py: LIBRARY is read without importing the module, so write it out"):
        get_family("toy_vit")
