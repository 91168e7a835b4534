"""Two hubs that say different things under one name and one commit are never taken for one another."""

import json
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from merganser.checkpoints.writing import save_tensors
from merganser.sources.counting import picture_of
from merganser.sources.fetching import fetch_checkpoint, fetch_data_set
from tests.hub import COMMIT, serve


@pytest.fixture(autouse=True)
def one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    for name, repository in {"model": "org/model", "data": "org/rows"}.items():
        (tmp_path / f"{name}.yaml").write_text(f"{{hub: {repository}, revision: {COMMIT}}}")


def write_hub(folder: Path, value: float) -> dict[str, Path]:
    """Write a model and a data set whose contents, and not their sizes, are this hub's own."""
    import torch

    for name in ("model", "rows"):
        (folder / name).mkdir(parents=True)
    save_tensors(folder / "model/model.safetensors", {"weight": torch.full((2, 2), value)})
    (folder / "model/config.json").write_text(json.dumps({"image_size": int(value), "patch_size": 1}))
    datasets.Dataset.from_dict({"x": [value]}).to_parquet(folder / "rows/test-00000-of-00001.parquet")
    return {"models/org/model": folder / "model", "datasets/org/rows": folder / "rows"}


def test_what_one_address_said_answers_no_question_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1.0, 2.0, 1.0):
        name = f"{value}-{len(list(tmp_path.iterdir()))}"
        with serve(write_hub(tmp_path / f"hub-{name}", value), COMMIT) as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
            assert picture_of(tmp_path / "model.yaml") == (int(value), 1)
            model, rows = tmp_path / f"model-{name}", tmp_path / f"rows-{name}"
            model.mkdir()
            rows.mkdir()
            fetch_checkpoint(tmp_path / "model.yaml", model)
            fetch_data_set(tmp_path / "data.yaml", rows, lambda splits, source: None)
        assert json.loads((model / "config.json").read_text())["image_size"] == int(value)
        assert (model / "model.safetensors").read_bytes() == (
            tmp_path / f"hub-{name}/model/model.safetensors"
        ).read_bytes()
        assert datasets.load_from_disk(rows)["test"]["x"] == [value]


def test_the_public_hub_s_cache_is_the_one_that_all_programs_share(monkeypatch: pytest.MonkeyPatch) -> None:
    from merganser.sources.guarded import data_set_cache, hub_cache

    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert (hub_cache(), data_set_cache()) == (Path(constants.HF_HUB_CACHE), Path(datasets.config.HF_DATASETS_CACHE))
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co/")
    assert hub_cache() == Path(constants.HF_HUB_CACHE)
