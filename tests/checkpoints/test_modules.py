"""Modules with weights of their own in folders beside a model: merged where all models have them, else named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from merganser.checkpoints.companions import module_folders
from merganser.checkpoints.kinds import ParameterRules
from merganser.config.recipes import RECIPE, read_recipe
from merganser.errors import InputError
from merganser.standalone.reconstruct import write_model_of
from tests.merges import merge_checkpoints

DENSE, MODULE = "2_Dense", {"linear.weight": torch.zeros(8, 4)}


def save(folder: Path, shift: float, module: str = DENSE, *, as_bin: bool = False, pools: str = "mean") -> Path:
    """Save a model with a dense module and a pooling, and a copy of its weights as training leaves it."""
    for place in (folder / "1_Pooling", folder / "checkpoint-5", folder / "onnx"):
        place.mkdir(parents=True, exist_ok=True)
    whole = {"encoder.weight": torch.full((4, 4), 1.0 + shift)}
    for place in (folder, folder / "checkpoint-5", folder / "onnx"):
        save_file(whole, place / "model.safetensors")
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling": pools}))
    if module:
        (folder / module).mkdir()
        (folder / module / "config.json").write_text("{}")
        own = {name: value + shift for name, value in MODULE.items()}
        if as_bin:
            torch.save(own, folder / module / "pytorch_model.bin")
        else:
            save_file(own, folder / module / "model.safetensors")
    return folder


def merge(tmp_path: Path, base: Path | None, *models: Path, method: str = "average") -> list[str]:
    tasks = {f"task{number}": model for number, model in enumerate(models)}
    return merge_checkpoints(method, {}, base, tasks, tmp_path / "out", device="cpu")


@pytest.mark.parametrize("as_bin", [False, True])
@pytest.mark.parametrize("module", [DENSE, "projection"])
def test_a_module_that_all_models_have_is_merged(module: str, as_bin: bool, tmp_path: Path) -> None:
    base, *models = (save(tmp_path / str(n), n, module, as_bin=as_bin) for n in range(3))
    notes = merge(tmp_path, base, *models)
    assert load_file(tmp_path / f"out/{module}/model.safetensors")["linear.weight"].unique().tolist() == [1.5]
    assert load_file(tmp_path / "out/model.safetensors").keys() == {"encoder.weight"}
    assert sorted(path.name for path in (tmp_path / f"out/{module}").iterdir()) == ["config.json", "model.safetensors"]
    assert f"modules, merged too: {module}/" in notes
    assert "left out of the base's folder: checkpoint-5/, onnx/" in notes
    assert read_recipe(tmp_path / "out" / RECIPE).notes == notes


def test_without_a_base_modules_are_averaged_too(tmp_path: Path) -> None:
    merge(tmp_path, None, *(save(tmp_path / str(n), n) for n in range(3)))
    assert load_file(tmp_path / f"out/{DENSE}/model.safetensors")["linear.weight"].unique().tolist() == [1]


def test_a_module_that_one_model_lacks_is_the_bases_and_named(tmp_path: Path) -> None:
    base, one = save(tmp_path / "base", 0), save(tmp_path / "one", 1)
    notes = merge(tmp_path, base, one, save(tmp_path / "two", 2, "other"))
    assert load_file(tmp_path / f"out/{DENSE}/model.safetensors")["linear.weight"].unique().tolist() == [0]
    assert f"modules that not all models have, copied from the base: {DENSE}/" in notes
    assert "task1: modules that the base has not, left out: other/" in notes


def test_a_module_can_be_kept_by_a_pattern_and_must_fit(tmp_path: Path) -> None:
    base, one = save(tmp_path / "base", 0), save(tmp_path / "one", 1)
    save_file({"linear.weight": torch.ones(3, 4)}, one / DENSE / "model.safetensors")
    with pytest.raises(InputError, match=rf"task0: {DENSE}//linear\.weight has shape \[3, 4\], in the base it has \[8"):
        merge(tmp_path, base, one)
    rules = ParameterRules(heads=[f"{DENSE}/*"])
    merge_checkpoints("average", {}, base, {"a": one}, tmp_path / "out", device="cpu", rules=rules)
    assert load_file(tmp_path / f"out/{DENSE}/model.safetensors")["linear.weight"].unique().tolist() == [0]


def test_a_module_that_changed_since_is_refused(tmp_path: Path) -> None:
    base, one = save(tmp_path / "base", 0), save(tmp_path / "one", 1)
    merge(tmp_path, base, one)
    recipe = read_recipe(tmp_path / "out" / RECIPE)
    assert f"{DENSE}/model.safetensors" in recipe.models["task0"].sha256


def test_a_tasks_own_model_has_its_modules(tmp_path: Path) -> None:
    base, one = save(tmp_path / "base", 0), save(tmp_path / "one", 1)
    merge(tmp_path, base, one, save(tmp_path / "two", 2), method="individual")
    write_model_of(tmp_path / "out", "task0", tmp_path / "again")
    for name in ("model.safetensors", f"{DENSE}/model.safetensors"):
        ours, theirs = (load_file(path / name) for path in (tmp_path / "again", one))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_another_pooling_is_named(tmp_path: Path) -> None:
    base, one = save(tmp_path / "base", 0), save(tmp_path / "one", 1, pools="cls")
    assert any("1_Pooling/config.json: pooling 'cls' (the base 'mean')" in note for note in merge(tmp_path, base, one))


def test_copies_of_the_model_are_no_modules(tmp_path: Path) -> None:
    folder = save(tmp_path, 0)
    (folder / "fp16").mkdir()
    save_file({"encoder.weight": torch.ones(4, 4).half()}, folder / "fp16/model.safetensors")
    assert module_folders(folder) == [DENSE]


def test_weights_that_no_reader_looks_at_are_named(tmp_path: Path) -> None:
    base, one = save(tmp_path / "base", 0), save(tmp_path / "one", 1)
    save_file(MODULE, one / "value_head.safetensors")
    (base / DENSE / "inner").mkdir()
    notes = merge(tmp_path, base, one)
    assert "task0: weights that are not read: value_head.safetensors" in notes
    assert any(f"{DENSE}/inner/" in note for note in notes if note.startswith("left out of the base's folder"))
