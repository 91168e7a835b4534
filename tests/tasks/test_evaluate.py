import json
import math
import shutil
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image

import merganser
from merganser.errors import InputError
from merganser.evaluation.examples import Results
from merganser.evaluation.scoring import score_of
from tasks import evaluate as stage
from tests.tasks.comparison import inside
from tests.tiny_clip import CLASSES, clip_parameters, pictures, score_clip, write_data_set


def measure(folder: Path, data: str = "data", split: str = "test", batch_size: int = 8) -> Results:
    """Run the tiny model of a folder on data beside it."""
    parameters = clip_parameters(folder / "model").items()
    return score_clip(folder / "model", parameters, folder / data, split, batch_size)


def test_the_score_counts_the_images_open_clip_itself_classifies_correctly(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", {"test": 31})
    found = measure(tmp_path)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'model'}", load_weights=False)
    model.load_state_dict(clip_parameters(tmp_path / "model"))
    images, labels = pictures(31)
    tokens = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'model'}")([f"a {name} image." for name in CLASSES])
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.fromarray(image)) for image in images])
        scores = model.eval().encode_image(pixels, normalize=True) @ model.encode_text(tokens, normalize=True).T
    assert predicted(found) == scores.argmax(1).tolist()
    assert found.label is not None
    assert found.label.tolist() == labels
    correct = int((scores.argmax(1) == torch.tensor(labels)).sum())
    share = correct / 31
    error = pytest.approx(math.sqrt(share * (1 - share) / 30))
    assert score_of("accuracy", found) == {"metric": "accuracy", "value": share, "count": 31, "stderr": error}


def predicted(found: Results) -> list[float]:
    assert found.prediction is not None
    return list(found.prediction.tolist())


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_the_score_does_not_depend_on_the_batch_size_or_on_how_images_are_stored(
    tmp_path: Path, batch_size: int
) -> None:
    write_data_set(tmp_path / "pictures", {"test": 20})
    write_data_set(tmp_path / "arrays", {"test": 20}, arrays=True)
    expected = predicted(measure(tmp_path, "pictures"))
    assert predicted(measure(tmp_path, "pictures", batch_size=batch_size)) == expected
    assert predicted(measure(tmp_path, "arrays", batch_size=batch_size)) == expected


def test_an_unknown_split_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", {"train": 3, "test": 3})
    with pytest.raises(InputError, match=r"no split 'validation'; it has train, test"):
        measure(tmp_path, split="validation")


def test_a_missing_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no saved data set; fetch it first"):
        measure(tmp_path)


def test_the_stage_evaluates_each_tasks_own_model_and_leaves_a_linked_file_alone(
    comparison: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "comparison"))
    file, cached = folder / "data/metrics/individual/red.json", tmp_path / "cached.json"
    before = file.read_bytes()
    cached.hardlink_to(file)  # as DVC links its cache into the workspace
    shutil.copytree(folder / "data/merged/average", tmp_path / "average")
    with inside(folder):
        shutil.rmtree("data/merged/individual")
        shutil.copytree(tmp_path / "average", "data/merged/individual")
        stage.main(["individual", "red"])
    assert cached.read_bytes() == before
    average = json.loads((folder / "data/metrics/average/red.json").read_text())
    assert json.loads(file.read_text()) == average
    assert average["count"] == 14


def test_the_stage_refuses_an_entry_or_a_task_that_is_not_declared(comparison: Path) -> None:
    with inside(comparison):
        with pytest.raises(InputError, match='no "averag" under methods'):
            stage.main(["averag", "dark"])
        with pytest.raises(InputError, match='no "drak" under tasks'):
            stage.main(["average", "drak"])
        with pytest.raises(InputError, match="expected two names, got average"):
            stage.main(["average"])


@pytest.mark.parametrize("entry", ["average", "tsv_c"])
def test_evaluate_from_python_is_what_the_stage_found(entry: str, comparison: Path) -> None:
    for task in ("dark", "red"):
        written = json.loads((comparison / f"data/metrics/{entry}/{task}.json").read_text())
        merged = comparison / "data/merged" / entry
        assert merganser.evaluate(merged, task, params=comparison / "params.yaml") == written
        data = {"source": str(comparison / f"sources/{task}-data"), "templates": ["a {} image."]}
        assert merganser.evaluate(merged, {"data": data}, family="open_clip", name=task) == written


def test_evaluate_from_python_refuses_mistakes_by_name(comparison: Path) -> None:
    merged, params = comparison / "data/merged/tsv_c", comparison / "params.yaml"
    data = {"source": str(comparison / "sources/red-data"), "templates": ["a {} image."]}
    for said, task, given in (
        ('no "rde" under tasks in params.yaml; did you mean "red"', "rde", {"params": params}),
        ("no split 'train'; it has validation, test", "red", {"params": params, "split": "train"}),
        ("family: missing", {"data": data}, {}),
        ("did you mean \"open_clip\"", {"data": data}, {"family": "openclip"}),
        ("keeps a part per task, of dark, light, red; say by name=", {"data": data}, {"family": "open_clip"}),
        (r"tasks\.task\.data\.template: unknown key", {"data": data | {"template": []}}, {"family": "open_clip"}),
        (r"tasks\.task\.data: missing", {"kind": "image_classification"}, {"family": "open_clip"}),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            merganser.evaluate(merged, task, **given)  # type: ignore[arg-type]


def test_scores_of_a_run_are_read_as_a_frame(comparison: Path) -> None:
    found = merganser.load(comparison / "data/metrics")
    assert len(found) == 5 * 3
    row = found[(found["entry"] == "average") & (found["task"] == "red")].iloc[0]
    written = json.loads((comparison / "data/metrics/average/red.json").read_text())
    assert {name: row[name] for name in written} == written
    assert (found["value"].dtype, found["count"].dtype) == ("float64", "Int64")
    assert len(merganser.load(comparison)) == len(found)
