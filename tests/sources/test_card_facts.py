"""What the card of a source says of its licence is kept beside what is fetched, and reaches the merge's card."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub import DatasetCard, DatasetCardData, ModelCard, ModelCardData, constants

from merganser.checkpoints.origins import origin_of
from merganser.sources.card_facts import read_facts
from merganser.sources.fetching import fetch_checkpoint, fetch_data_set
from tests.hub import COMMIT, serve
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
    assert origin_of(tmp_path / "out").licences == ["llama3"]


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
        "---\nlicense: " + "x" * 501 + "\n---\n",
        "---\nlicense: " + "[" * 5000 + "\n---\n",
        "---\nlicense: mit\n---\n" + "x" * 2**20,
    ],
)
def test_a_card_that_cannot_be_read_says_nothing_and_stops_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert read_facts(tmp_path / "README.md") == {}
