"""Tasks that have no model: what every entry scores on them, on the tiny comparison."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.loading import load_params
from merganser.config.mistakes import Mistake, MistakesError
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from merganser.evaluation.scoring import score_of
from merganser.models import embed_classes
from merganser.overlays import task_model
from merganser.tasks import describe, evaluate_unseen, fetch_head, merge, prepare_unseen
from tests.support import each
from tests.tasks.comparison import METHODS, TASKS, inside
from tests.tiny_clip import CLASSES, score_clip, write_data_set

NAMES = ["night", "snow", "a rose"]  # of the unseen task's classes
HELD: dict[str, Any] = {"data": {"source": "sources/held-data", "templates": ["a {} image."], "classes": NAMES}}
ENTRIES: dict[str, dict[str, Any]] = {
    "emr": {"method": "emr", "reads": "deltas"},
    "dts_unseen": {"method": "dts_unseen", "reads": "embeddings/svd"},
    "smile": {"method": "smile", "reads": "svd", "k": 4, "k_gate": 2},
}


def change(**sections: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text()) | sections
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison with an unseen task, measured by entries of every kind."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("unseen") / "comparison"))
    with inside(folder):
        write_data_set(Path("sources/held-data"), {"test": 40}, size=20)
        change(unseen={"held": HELD}, embeddings={"svd": {"of": "svd"}}, methods=METHODS | ENTRIES)
        load_params()
        describe.main(["svd"])
        fetch_head.main(["held"])
        prepare_unseen.main(["held"])
        for entry in ENTRIES:
            merge.main([entry])
        for entry in METHODS | ENTRIES:
            evaluate_unseen.main([f"{entry}-held"])
    return folder


def found(folder: Path, entry: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"data/measures/unseen/{entry}/held.json").read_text())
    return content


def read(path: Path) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names}


def measured(folder: Path, parameters: dict[str, Tensor]) -> float:
    """Score parameters on the unseen task's data by a plain evaluation of the named classes."""
    data, base = folder / "sources/held-data", folder / "data/base"
    return float(score_of("accuracy", score_clip(base, parameters.items(), data, classes=NAMES))["value"])


@pytest.mark.parametrize("entry", ["base", "average", "sum"])
def test_one_model_for_all_tasks_is_run_on_the_unseen_one_as_it_is(made: Path, entry: str) -> None:
    assert found(made, entry)["value"] == measured(made, read(made / "data/merged" / entry))
    assert found(made, entry)["count"] == 40
    assert "uniform" not in found(made, entry)


def test_an_entry_with_parts_has_what_all_share_and_beside_it_mixtures_of_the_parts(made: Path) -> None:
    base = read(made / "data/base")
    models = {task: dict(task_model(made / "data/merged/individual", task)) for task in TASKS}
    alone = {task: measured(made, model) for task, model in models.items()}
    score = found(made, "individual")
    assert score["value"] == found(made, "base")["value"]
    assert score["uniform"] == found(made, "average")["value"]
    assert (score["oracle"], alone[score["oracle_task"]]) == (max(alone.values()), max(alone.values()))
    classes = dict.fromkeys(TASKS, CLASSES) | {"held": NAMES}
    embedded = {name: value.double() for name, value in embed_classes("open_clip", made / "data/base", classes).items()}
    cosines = {task: float(torch.cosine_similarity(embedded["held"], embedded[task], dim=0)) for task in TASKS}
    deltas = {
        name: sum(cosines[task] * (models[task][name] - value) for task in TASKS) / sum(cosines.values())
        for name, value in base.items()
    }
    assert score["similar"] == measured(made, {name: value + deltas[name] for name, value in base.items()})


def test_what_masks_share_is_measured_without_a_mask(made: Path) -> None:
    shared, unified = read(made / "data/merged/emr"), read(made / "data/merged/emr/unified.safetensors")
    expected = measured(made, {name: value + unified.get(name, 0) for name, value in shared.items()})
    assert found(made, "emr")["value"] == expected


def test_dts_unseen_mixes_parts_by_likeness_and_what_routes_its_inputs_does_so(made: Path) -> None:
    score = found(made, "dts_unseen")
    assert score["value"] == score["similar"]
    assert not {"uniform", "similar", "oracle"} & found(made, "smile").keys()


def test_the_results_of_each_example_are_those_that_an_entrys_score_is_of(made: Path) -> None:
    for entry in METHODS | ENTRIES:
        results, score = read_results(made / f"data/measures/unseen/{entry}/held.safetensors"), found(made, entry)
        assert results.score is not None
        assert len(results) == score["count"]
        assert results.score.mean() == pytest.approx(score["value"])
    results = read_results(made / "data/measures/unseen/average/held.safetensors")
    merged, data = read(made / "data/merged/average"), made / "sources/held-data"
    for name, values in vars(score_clip(made / "data/base", merged.items(), data, classes=NAMES)).items():
        assert getattr(results, name).tolist() == values.tolist()


def test_an_unseen_task_is_in_no_merge(made: Path, comparison: Path) -> None:
    for entry in METHODS:
        merged = f"data/merged/{entry}/model.safetensors"
        assert (made / merged).read_bytes() == (comparison / merged).read_bytes()


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"dark": HELD}, r"unseen\.dark: there is a task of this name"),
    ({"a/b": HELD}, r"unseen\.a/b: not a name"),
    ({"held": {"data": HELD["data"] | {"templates": []}}}, r"unseen\.held\.data\.templates: there are none"),
    (
        {"held": {"kind": "unmeasured", "data": {"source": "x"}}},
        r"unseen\.held\.kind: .*unmeasured has none",
    ),
    (
        {"held": {"kind": "text_classification", "data": {"source": "x"}}},
        r"unseen\.held\.kind: text_classification needs its own head; .*held\.head, .*open_clip does image_cl",
    ),
    (
        {"held": HELD | {"head": "sources/red"}},
        r"unseen\.held\.head: image_classification makes its answers of words and has no head",
    ),
    (
        {"held": {"kind": "text_classification", "head": "sources/red", "data": {"source": "x"}}},
        r"unseen\.held\.head: base\.heads does not say which parameters a head is",
    ),
    ({"held": HELD | {"source": "x"}}, r"unseen\.held\.source: unknown key"),
    ({"held": {"data": HELD["data"] | {"split": "train"}}}, r"unseen\.held\.data\.split: .*no split 'train'"),
]


@each("mistake", MISTAKES)
def test_a_mistake_in_an_unseen_task_is_named(folder: Path, mistake: tuple[dict[str, Any], str]) -> None:
    from merganser.config.headers import check_sources

    unseen, said = mistake
    change(unseen=unseen)
    with pytest.raises(InputError, match=said):
        load_params(sources=lambda params: _mistakes(params, check_sources))


def _mistakes(params: Any, check: Any) -> tuple[Mistake, ...]:
    try:
        check(params, Path(), lambda path: False)
    except MistakesError as error:
        return error.mistakes
    return ()


def test_a_task_without_a_source_is_told_where_it_may_stand(folder: Path) -> None:
    tasks = yaml.safe_load(Path("params.yaml").read_text())["tasks"]
    del tasks["red"]["source"]
    change(tasks=tasks)
    with pytest.raises(InputError, match=r"tasks\.red\.source: missing; .* declare it under unseen"):
        load_params()
