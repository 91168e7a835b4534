import json
import math
import shutil
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import merganser
from merganser.errors import InputError
from merganser.evaluation.examples import Results, read_results
from merganser.evaluation.scoring import score_of
from merganser.tasks import evaluate as stage
from merganser.tasks import extract, fetch, merge, prepare
from tests.tasks.comparison import CONFIG, TASKS, inside, write_params, write_sources
from tests.tiny_clip import CLASSES, clip_parameters, pictures, score_clip, write_data_set


def measure(folder: Path, data: str = "data", split: str = "test", batch_size: int = 8) -> Results:
    """Run the tiny model of a folder on data beside it."""
    parameters = clip_parameters(folder / "model").items()
    return score_clip(folder / "model", parameters, folder / data, split, batch_size)


def test_the_score_counts_the_images_open_clip_itself_classifies_correctly(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", {"test": 31})
    found = measure(tmp_path)
    _, labels = pictures(31)
    best = by_open_clip(tmp_path / "model", clip_parameters(tmp_path / "model"), 31)
    assert predicted(found) == best
    assert found.label is not None
    assert found.label.tolist() == labels
    correct = int((torch.tensor(best) == torch.tensor(labels)).sum())
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


def test_what_is_rebuilt_of_a_task_prepares_pictures_as_its_own_checkpoint_says_and_a_merge_as_the_base(
    tmp_path: Path,
) -> None:
    write_params(tmp_path)
    write_sources(tmp_path / "sources")
    vision = {**CONFIG["model_cfg"]["vision_cfg"], "norm_kwargs": {"eps": 0.3}}
    prepared = {"mean": [0.1, 0.5, 0.9], "std": [0.1, 0.2, 0.4], "interpolation": "bilinear"}
    said = {"model_cfg": {**CONFIG["model_cfg"], "vision_cfg": vision}, "preprocess_cfg": prepared}
    (tmp_path / "sources/red/open_clip_config.json").write_text(json.dumps(said))
    shutil.rmtree(tmp_path / "sources/red-data")
    write_data_set(tmp_path / "sources/red-data", {"test": 40}, size=20)
    with inside(tmp_path):
        for what in (["base"], ["data", "red"], *(["task", task] for task in TASKS)):
            fetch.main(what)
        prepare.main(["red"])
        for task in TASKS:
            extract.main([task])
        for entry in ("individual", "average"):
            merge.main([entry])
            stage.main([entry, "red"])
        found = {
            entry: read_results(Path(f"data/examples/{entry}/red.safetensors")) for entry in ("individual", "average")
        }
        own = load_file("data/base/model.safetensors") | load_file("sources/red/open_clip_model.safetensors")
        mean = load_file("data/merged/average/model.safetensors")
    for entry, folder, parameters in (("individual", "red", own), ("average", "base", mean)):
        assert predicted(found[entry]) == by_open_clip(tmp_path / "sources" / folder, parameters, 40, 20), entry
    other = {name: by_open_clip(tmp_path / "sources" / name, own, 40, 20) for name in ("base", "red")}
    assert other["base"] != other["red"]
    written = json.loads((tmp_path / "data/metrics/individual/red.json").read_text())
    assert merganser.evaluate(tmp_path / "data/merged/individual", "red", params=tmp_path / "params.yaml") == written


def by_open_clip(folder: Path, parameters: dict[str, torch.Tensor], count: int, size: int = 16) -> list[float]:
    """Classify pictures by open_clip itself, with the configuration in a folder."""
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}", load_weights=False)
    model.load_state_dict(parameters)
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")([f"a {name} image." for name in CLASSES])
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.fromarray(image)) for image in pictures(count, size)[0]])
        scores = model.eval().encode_image(pixels, normalize=True) @ model.encode_text(tokens, normalize=True).T
    return [float(best) for best in scores.argmax(1)]


def test_tasks_whose_tokens_have_other_numbers_are_not_merged_where_the_base_has_no_tokenizer(
    comparison: Path, tmp_path: Path
) -> None:
    for name in ("base", "companions", "deltas", "sources"):
        shutil.copytree(comparison / "data" / name, tmp_path / "data" / name)
    shutil.copyfile(comparison / "params.yaml", tmp_path / "params.yaml")
    for task, numbers in (("dark", {"a": 0, "b": 1}), ("red", {"a": 1, "b": 0})):
        (tmp_path / f"data/companions/{task}/vocab.json").write_text(json.dumps(numbers))
    with inside(tmp_path), pytest.raises(InputError, match="red: its tokenizer gives 'b' the number 0, that of dark 1"):
        merge.main(["average"])
    assert not (tmp_path / "data/merged").exists()


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
        ("no split ''; it has validation, test", "red", {"params": params, "split": ""}),
        ("batch_size: Input should be greater than or equal to 1, got 0", "red", {"params": params, "batch_size": 0}),
        ("batch_size: .*, got -1", "red", {"params": params, "batch_size": -1}),
        ("device: Input should be 'cpu' or 'cuda', got 'gpu'", "red", {"params": params, "device": "gpu"}),
        ("precision: .*, got 'int8'", "red", {"params": params, "precision": "int8"}),
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
