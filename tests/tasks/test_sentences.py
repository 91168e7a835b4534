"""A comparison of sentence encoders, of which params.yaml says where models and data lie, against plain loops."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Value
from huggingface_hub import ModelCard
from scipy import stats
from transformers import AutoModel, AutoTokenizer

from merganser.config.loading import load_params
from merganser.inputs.layers import LayerDeltas
from merganser.inputs.statistics import open_statistics
from tests.evaluation.kinds.texts import data_set, sentences
from tests.sentence_encoders import POOL, embeddings_one_by_one, write_encoder, write_files
from tests.tasks.comparison import inside, run_declared

COUNT = 30
NUMBERS = np.random.default_rng(5).uniform(0, 5, COUNT).round(1).tolist()
QUERIES = sentences(COUNT, seed=2)
PASSAGES = [
    f"{text} ." if row % 3 else other
    for row, (text, other) in enumerate(zip(QUERIES, sentences(COUNT, 3), strict=True))
]
MODES = {"alike": "mean", "found": "cls"}  # the base has the first
METRICS = {"alike": "spearman", "found": "recall_at_1"}
QUERY = "encoder.layer.0.attention.self.query.weight"
METHODS: dict[str, dict[str, Any]] = {
    "base": {"method": "base", "reads": "deltas"},
    "average": {"method": "average", "reads": "deltas"},
    "regmean": {"method": "regmean", "reads": "statistics/gram"},
    "individual": {"method": "individual", "reads": "deltas"},
    "twin": {"method": "twin", "reads": "routers/x"},
}


def write_sources(folder: Path) -> None:
    """Write an encoder, and a model of each task: the encoder moved a little, one with another pooling."""
    base = write_encoder(folder / "base", old=False)
    for seed, (task, mode) in enumerate(MODES.items()):
        model = write_encoder(folder / task)
        torch.manual_seed(seed)
        model.load_state_dict(base.state_dict())
        with torch.no_grad():
            for value in model.encoder.parameters():
                value.add_(0.2 * torch.randn_like(value))
        model.save_pretrained(folder / task)
        write_files(folder / task, [mode])
    similar = data_set(Value("float64"), NUMBERS, pairs=True)
    similar["validation"] = similar["test"].select(range(6))
    similar.save_to_disk(folder / "alike-data")
    found = data_set(Value("int64"), [0] * COUNT, text=QUERIES, pair=PASSAGES).remove_columns("label")
    found["validation"] = found["test"].select(range(6))
    found.save_to_disk(folder / "found-data")


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the stages from fetch to the report."""
    folder = tmp_path_factory.mktemp("sentences")
    write_sources(folder / "sources")
    shutil.copyfile(comparison / "mlflow.db", folder / "mlflow.db")  # without runs
    sections = {"statistics": {"gram": {"kind": "gram", "examples": 6}}, "differences": {"x": {"merged": "average"}}}
    params = sections | {"routers": {"x": {"of": "differences/x"}}, "methods": METHODS}
    run_declared(folder, MODES, params, with_report=True)
    return folder


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    with inside(made):
        yield made


def score_of(entry: str, task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())
    return found


def expected_score(model: Path, task: str, modes: list[str]) -> float:
    """Score a model by a plain loop over transformers."""
    columns = (sentences(COUNT), sentences(COUNT, 1)) if task == "alike" else (QUERIES, PASSAGES)
    one, other = (embeddings_one_by_one(model, texts, modes, normalized=True).astype(np.float64) for texts in columns)
    if task == "alike":
        return float(stats.spearmanr((one * other).sum(1), NUMBERS).statistic)
    best = [np.argmax([row @ each for each in other]) for row in one]
    return float(np.mean([PASSAGES[place] == PASSAGES[row] for row, place in enumerate(best)]))


def test_family_kinds_and_metrics_follow_from_the_files(folder: Path) -> None:
    params = load_params()
    assert params.base.family == "sentence_encoder"
    assert params.base.heads == []
    assert {name: task.kind for name, task in params.tasks.items()} == {
        "alike": "sentence_similarity",
        "found": "retrieval",
    }


@pytest.mark.parametrize("task", MODES)
def test_scores_are_those_of_transformers_states_pooled_as_each_model_says(folder: Path, task: str) -> None:
    models = {"base": ("sources/base", "mean"), "individual": (f"sources/{task}", MODES[task])}
    models |= {entry: (f"data/merged/{entry}", "mean") for entry in ("average", "regmean")}
    values = set()
    for entry, (model, mode) in models.items():
        score = score_of(entry, task)
        assert (score["metric"], score["count"]) == (METRICS[task], COUNT)
        assert score["value"] == pytest.approx(expected_score(Path(model), task, [mode]), abs=1e-6), entry
        values.add(round(score["value"], 6))
    assert len(values) > 1  # models differ


def test_routed_texts_are_embedded_by_their_own_mixture(folder: Path) -> None:
    trained, shared = score_of("twin", "alike"), score_of("average", "alike")
    assert 0 <= trained["router"] <= 1
    assert trained["value"] != shared["value"]


def test_the_statistics_read_the_first_texts(folder: Path) -> None:
    source = open_statistics(Path("data/statistics/gram"), list(MODES))
    layer = next(each for each in source if each.name == QUERY)
    assert isinstance(layer, LayerDeltas)
    gram = layer.statistics["gram"]
    assert gram is not None
    for place, task in enumerate(sorted(MODES)):
        model, words = AutoModel.from_pretrained(f"sources/{task}"), AutoTokenizer.from_pretrained(f"sources/{task}")
        texts = (sentences(COUNT) if task == "alike" else QUERIES)[:6]
        with torch.inference_mode():
            tokens = [words(text, return_tensors="pt")["input_ids"] for text in texts]
            rows = torch.cat([model.embeddings(each)[0] for each in tokens]).double()
        torch.testing.assert_close(gram[place].double(), rows.T @ rows / len(rows), rtol=1e-5, atol=1e-6)


def test_a_merge_has_the_files_and_the_card_of_a_sentence_encoder(folder: Path) -> None:
    merged = Path("data/merged/average")
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (merged / name).read_bytes() == (Path("sources/base") / name).read_bytes()
    data = ModelCard.load(merged / "README.md").data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert "recall at 1" in Path("report/index.html").read_text()
    assert set(POOL) > set(MODES.values())
