"""What the card of a source says of its licence is kept beside what is fetched, and reaches the merge's card."""

import json
from pathlib import Path
from typing import Any

import datasets
import open_clip
import pytest
import torch
from datasets import Dataset, DatasetDict
from huggingface_hub import DatasetCard, DatasetCardData, ModelCard, ModelCardData, constants

from merganser.checkpoints.companions import licences_in, model_origin
from merganser.hashes import sha256_of
from merganser.sources.fetching import fetch_checkpoint, fetch_data_set, known_facts
from merganser.sources.licences import read_facts
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.hub import COMMIT, serve
from tests.tiny_clip import CONFIG, clip_parameters
from tests.transformers_models import tiny


def write_card(folder: Path, **facts: Any) -> None:
    ModelCard(f"---\n{ModelCardData(**facts).to_yaml()}\n---\n\n# A model\n").save(folder / "README.md")


def described(source: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    fetch_checkpoint(source, out)
    found: dict[str, Any] = json.loads((out / "source.json").read_text())
    return found


@pytest.mark.parametrize("remote", [False, True])
def test_the_card_of_a_model_is_read_in_a_folder_and_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    model, source = tmp_path / "model", tmp_path / "model"
    tiny("bert").save_pretrained(model)
    facts = {"license": "other", "license_name": "llama3", "datasets": ["org/rows"], "base_model": "org/base"}
    write_card(model, **facts)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({"models/org/model": model}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        if remote:
            source = tmp_path / "pointer.yaml"
            source.write_text(f"{{hub: org/model, revision: '{COMMIT}'}}")
        found = described(source, tmp_path / "out")
    assert {name: found[name] for name in facts} == {
        name: fact if isinstance(fact, list) else [fact] for name, fact in facts.items()
    }
    assert "README.md" not in found["files"]
    assert model_origin(tmp_path / "out").licences == ["llama3"]


@pytest.mark.parametrize("path", ["tuned", "tuned/model.safetensors"])
@pytest.mark.parametrize("of_the_folder", [False, True])
def test_the_card_of_a_folder_in_a_repository_comes_before_the_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_folder: bool, path: str
) -> None:
    model = tmp_path / "repository/tuned"
    tiny("bert").save_pretrained(model)
    write_card(tmp_path / "repository", license="mit", datasets=["org/rows"])
    if of_the_folder:
        write_card(model, license="cc-by-nc-4.0")
    (tmp_path / "pointer.yaml").write_text(f"{{hub: org/model, revision: '{COMMIT}', path: {path}}}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({"models/org/model": tmp_path / "repository"}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        assert known_facts(tmp_path / "pointer.yaml") == {}
        found = described(tmp_path / "pointer.yaml", tmp_path / "out")
        asked = len(served.asked)
        known = known_facts(tmp_path / "pointer.yaml")
        assert len(served.asked) == asked
    assert known == {name: found[name] for name in known}
    assert found["license"] == (["cc-by-nc-4.0"] if of_the_folder else ["mit"])
    assert found.get("datasets") == (None if of_the_folder else ["org/rows"])


def test_an_adapters_licence_file_counts_where_no_card_gives_a_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    write_base(tmp_path / "base")
    write_adapter(model, tmp_path / "base")
    write_card(model, datasets=["org/rows"])
    (model / "LICENSE").write_text("Attribution-NonCommercial 4.0 International\n")
    (tmp_path / "pointer.yaml").write_text(f"{{hub: org/model, revision: '{COMMIT}'}}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({"models/org/model": model}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        remote = described(tmp_path / "pointer.yaml", tmp_path / "remote")
    local = described(model, tmp_path / "local")
    for found in (remote, local):
        assert found["license_file"] == [f"LICENSE, sha256 {sha256_of(model / 'LICENSE')}"]
        assert found["license_in_file"] == ["cc-by-nc-4.0"]
        assert "LICENSE" not in found["files"]
    origin = model_origin(tmp_path / "remote")
    assert (origin.licences, origin.datasets) == (["cc-by-nc-4.0"], ["org/rows"])


@pytest.mark.parametrize(
    ("facts", "licences"),
    [
        ({"license": ["mit"], "license_file": ["LICENSE, sha256 0"], "license_in_file": ["gpl-3.0"]}, ["mit"]),
        ({"license": ["other"], "license_file": ["LICENSE, sha256 0"]}, ["LICENSE, sha256 0"]),
        ({"license": ["other"], "license_name": ["llama3"], "license_file": ["LICENSE, sha256 0"]}, ["llama3"]),
        ({"license": ["other"]}, ["other"]),
        ({}, []),
    ],
)
def test_a_licence_file_counts_only_where_the_card_names_no_licence(
    facts: dict[str, list[str]], licences: list[str]
) -> None:
    assert licences_in(facts) == licences


def test_the_card_of_a_model_of_open_clips_is_read_at_the_commit_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    torch.save(clip_parameters(repository), repository / "open_clip_pytorch_model.bin")
    write_card(repository, license="mit")
    (tmp_path / "tiny-clip.json").write_text(json.dumps(CONFIG["model_cfg"]))
    open_clip.add_model_config(tmp_path / "tiny-clip.json")
    (tmp_path / "pointer.yaml").write_text("{open_clip: tiny-clip, pretrained: here}")
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip", {"here": {"hf_hub": "org/clip/"}})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({"models/org/clip": repository}) as served:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, served.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        assert described(tmp_path / "pointer.yaml", tmp_path / "out")["license"] == ["mit"]
        (repository / "README.md").unlink()
        assert "license" not in described(tmp_path / "pointer.yaml", tmp_path / "without")


def test_what_lies_beside_a_single_file_is_no_card_of_it(tmp_path: Path) -> None:
    tiny("bert").save_pretrained(tmp_path / "model")
    write_card(tmp_path / "model", license="mit")
    assert "license" not in described(tmp_path / "model/model.safetensors", tmp_path / "out")


def test_the_card_of_a_data_set_on_a_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "test.csv").write_text("text,label\na,0\nb,1\n")
    DatasetCard(f"---\n{DatasetCardData(license=['mit', 'cc-by-4.0']).to_yaml()}\n---\n").save(rows / "README.md")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    (tmp_path / "pointer.yaml").write_text(f"{{hub: org/rows, revision: '{COMMIT}'}}")
    (tmp_path / "out").mkdir()
    with serve({"datasets/org/rows": rows}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", served.url)
        fetch_data_set(tmp_path / "pointer.yaml", tmp_path / "out", lambda splits, source: None)
    assert json.loads((tmp_path / "out/source.json").read_text())["license"] == ["mit", "cc-by-4.0"]


def test_the_card_of_a_saved_data_set_is_read(tmp_path: Path) -> None:
    DatasetDict({"test": Dataset.from_dict({"text": ["a"], "label": [0]})}).save_to_disk(tmp_path / "rows")
    write_card(tmp_path / "rows", license="mit")
    (tmp_path / "out").mkdir()
    fetch_data_set(tmp_path / "rows", tmp_path / "out", lambda splits, source: None)
    assert json.loads((tmp_path / "out/source.json").read_text())["license"] == ["mit"]


@pytest.mark.parametrize(
    "text",
    [
        "# no metadata",
        "---\n- a list\n---\n",
        "---\nlicense: [\n---\n",
        "---\nlicense: 3\n---\n",
        "---\nlicense: {a: b}\n---\n",
        "---\nlicense: !!bool x\n---\n",
        "---\nlicense: !!int ''\n---\n",
        "---\nlicense: !!timestamp x\n---\n",
        "---\nlicense: " + "x" * 501 + "\n---\n",
        "---\nlicense: " + "[" * 5000 + "\n---\n",
        "---\nlicense: mit\n---\n" + "x" * 2**20,
    ],
)
def test_a_card_that_cannot_be_read_says_nothing_and_stops_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert read_facts(tmp_path / "README.md") == {}
