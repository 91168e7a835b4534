"""A comparison of encoders with heads of their own, run by the stages: two kinds of task, three metrics."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import ClassLabel, DatasetDict, Value, load_from_disk
from mlflow import MlflowClient
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from merganser.errors import InputError
from merganser.evaluation.examples import compare_predictions, read_results
from merganser.evaluation.scoring import score_of
from merganser.tasks import (
    decompose,
    evaluate,
    evaluate_unseen,
    extract,
    fetch,
    fetch_head,
    measure,
    measure_merged,
    merge,
    prepare,
    prepare_unseen,
    record,
    study_rank,
)
from tests.evaluation.kinds.texts import data_set
from tests.tasks.comparison import inside, measure_points, plots_of, report_without_plots
from tests.tiny_transformers import random_model, tokenizer

COUNT = 40
NAMES = ["no", "yes"]
TASKS: dict[str, dict[str, Any]] = {
    "linked": {"kind": "text_classification", "data": {"metric": "matthews"}},
    "toned": {"kind": "text_classification", "data": {}},
    "graded": {"kind": "regression", "data": {}},
}
METRICS = {"linked": "matthews", "toned": "accuracy", "graded": "spearman"}
METHODS = {
    "base": {"method": "base", "reads": "deltas"},
    "average": {"method": "average", "reads": "deltas"},
    "tsv_m": {"method": "tsv_m", "reads": "svd"},
    "tsv_c": {"method": "tsv_c", "reads": "svd", "rank_fraction": 0.4},
    "individual": {"method": "individual", "reads": "deltas"},
}
STUDY = {"subsets": 1, "methods": {"average": {"method": "average", "reads": "deltas"}}}


def data_of(task: str) -> DatasetDict:
    """Draw a task's texts and labels."""
    generator = np.random.default_rng(len(task))
    if task == "graded":
        return data_set(Value("float64"), generator.uniform(0, 5, COUNT).round(1).tolist(), pairs=True)
    names = NAMES if task == "linked" else [*NAMES, "maybe"]
    return data_set(
        ClassLabel(names=names), generator.integers(len(names), size=COUNT).tolist(), pairs=task == "linked"
    )


def write_sources(folder: Path) -> None:
    """Write an encoder and a model of each task: the encoder moved a little, with a head of the task's size."""
    base = random_model("roberta", 2)
    base.save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    for number, task in enumerate(TASKS):
        data = data_of(task)
        data.save_to_disk(folder / f"{task}-data")
        classes = getattr(data["test"].features["label"], "names", None)
        model = random_model("roberta", len(classes) if classes else 1, seed=number + 1)
        torch.manual_seed(number)
        model.roberta.load_state_dict(base.roberta.state_dict())
        with torch.no_grad():
            for value in model.roberta.encoder.parameters():
                value.add_(0.1 * torch.randn_like(value))
        if classes:
            model.config.id2label = dict(enumerate(classes))
        if task == "toned":
            model.config.layer_norm_eps = 0.3  # no shape says so
        model.save_pretrained(folder / task)
        tokenizer(ends=task != "linked").save_pretrained(folder / task)


def write_params(folder: Path) -> None:
    """Write the comparison's params.yaml."""
    tasks = {
        task: about | {"source": f"sources/{task}", "data": about["data"] | {"source": f"sources/{task}-data"}}
        for task, about in TASKS.items()
    }
    params = {
        "seed": 0,
        "base": {"source": "sources/base", "family": "encoder", "heads": ["classifier.*"]},
        "parameters": {"merged": ["roberta.encoder.*"], "matrices": "linear"},
        "tasks": tasks,
        "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
        "methods": METHODS,
        "evaluation": {"split": "test", "batch_size": 16},
        "studies": {"tasks": STUDY, "rank": {"fractions": [0.5]}},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture(scope="module")
def folder(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run every stage from fetch to the report, and work in the comparison's folder."""
    made = tmp_path_factory.mktemp("texts")
    write_sources(made / "sources")
    write_params(made)
    shutil.copyfile(comparison / "mlflow.db", made / "mlflow.db")  # without runs
    with inside(made):
        fetch.main(["base"])
        for task in TASKS:
            for what in ("task", "data"):
                fetch.main([what, task])
            for stage in (prepare, extract, decompose):
                stage.main([task])
        for entry in METHODS:
            merge.main([entry])
            measure_merged.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
            record.main([entry])
        measure.main([])
        measure_points()
        for task in TASKS:
            study_rank.main([task, "fractions"])
        report_without_plots(lambda found: plots_of(found, "glance", "study_tasks", "study_rank"))
        yield made


@pytest.mark.parametrize("task", TASKS)
def test_the_individual_models_score_as_transformers_itself_does(folder: Path, task: str) -> None:
    rows = load_from_disk(folder / f"sources/{task}-data")["test"]
    model = AutoModelForSequenceClassification.from_pretrained(folder / "sources" / task)
    words = AutoTokenizer.from_pretrained(folder / "sources" / task)
    columns = [list(rows[name]) for name in ("text", "pair") if name in rows.column_names]
    with torch.inference_mode():
        logits = model(**words(*columns, padding=True, return_tensors="pt")).logits
    found = logits.argmax(1) if task != "graded" else logits[:, 0]
    expected = score_of(METRICS[task], compare_predictions(METRICS[task], found.numpy(), rows["label"]))
    score = json.loads((folder / f"data/metrics/individual/{task}.json").read_text())
    assert (score["metric"], score["count"]) == (METRICS[task], COUNT)
    assert score["value"] == pytest.approx(expected["value"], abs=1e-9)
    assert score["stderr"] == pytest.approx(expected["stderr"], abs=1e-9)
    results = read_results(folder / f"data/examples/individual/{task}.safetensors")
    np.testing.assert_allclose(results.prediction, found.numpy(), rtol=1e-4, atol=1e-5)


def test_an_unseen_task_with_a_head_scores_as_the_task_whose_head_and_data_it_has(folder: Path) -> None:
    text = Path("params.yaml").read_text()
    params = yaml.safe_load(text)
    params["unseen"] = {"held": params["tasks"]["linked"] | {"head": "sources/linked"}}
    del params["unseen"]["held"]["source"]
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    fetch_head.main(["held"])
    prepare_unseen.main(["held"])
    for entry in ("base", "average", "tsv_m"):
        evaluate_unseen.main([f"{entry}-held"])
        unseen, linked = f"data/measures/unseen/{entry}/held", f"{entry}/linked"
        for found, expected in ((f"{unseen}.json", "metrics"), (f"{unseen}.safetensors", "examples")):
            same = Path(f"data/{expected}/{linked}{Path(found).suffix}")
            assert Path(found).read_bytes() == same.read_bytes()
    Path("params.yaml").write_text(text)


def test_scores_of_different_metrics_are_named_in_the_report(folder: Path) -> None:
    page = (folder / "report/index.html").read_text()
    for text in (
        "linked<small> Matthews",
        "toned<small> accuracy",
        "graded<small> Spearman",
        "Mean score of each entry",
    ):
        assert text in page
    assert "ccuracy" not in page.replace("<small> accuracy", "").replace('title="accuracy', "")
    assert "score, × 100" in (folder / "report/plots/scores.svg").read_text()
    metrics = json.loads((folder / "data/scores.json").read_text())["tsv_m"]
    values = {task: metrics[metric][task] for task, metric in METRICS.items()}
    assert metrics["mean"] == pytest.approx(sum(values.values()) / 3)
    rows = list(csv.DictReader((folder / "report/plots/scores.csv").open()))
    assert {(row["task"], row["metric"]) for row in rows} == set(METRICS.items())


def test_mlflow_names_each_score_by_its_metric(folder: Path) -> None:
    run = json.loads(Path("data/records/tsv_m.json").read_text())["run_id"]
    logged = MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(run).data.metrics
    assert {"matthews/linked", "accuracy/toned", "spearman/graded", "score_mean"} <= logged.keys()


def test_entries_are_compared_by_each_tasks_own_metric(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "report/significance.csv").open()))
    assert {(row["column"], row["group"]) for row in rows} == {(name, "single") for name in ("mean", *TASKS)}
    table = {row["entry"]: row for row in csv.DictReader((folder / "report/results.csv").open())}
    for row in rows:
        ours, best = (float(table[row[name]][row["column"]]) for name in ("entry", "best"))
        assert float(row["difference"]) == pytest.approx(ours - best)
        assert 0 <= float(row["p"]) <= float(row["corrected"]) <= 1


def test_a_head_of_other_classes_than_the_datas_is_refused(folder: Path) -> None:
    config = folder / "data/checkpoints/toned/config.json"
    before = config.read_bytes()
    about = json.loads(before)
    config.write_text(json.dumps(about | {"id2label": {"0": "yes", "1": "no", "2": "maybe"}}))
    try:
        extract.main(["toned"])
        with pytest.raises(InputError, match=r"tasks\.toned: the head has in another order: yes, no, maybe"):
            evaluate.main(["average", "toned"])
    finally:
        config.write_bytes(before)
        extract.main(["toned"])
