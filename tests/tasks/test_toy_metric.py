"""A metric is a function with its row, its name in the kinds that have it, and a library's function beside it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import balanced_accuracy_score

from merganser.config.text import with_values
from tests.chapters import PYTEST, Copy

FUNCTION = '''def balanced_accuracy(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return the mean of the recalls of the classes that occur as a label.

    >>> float(balanced_accuracy([1, 1, 0], [1, 0, 0]))
    0.75
    """
    hits, _, labelled, _ = _counts(predictions, labels, weights)
    return _ratio(_ratio(hits, labelled).sum(-1), (labelled > 0).sum(-1))


'''
ROW = '    "balanced_accuracy": Metric(balanced_accuracy, "balanced accuracy", is_share=True),\n'
EVALUATE = """
from merganser.tasks import evaluate, prepare
prepare.main(["dark"])
evaluate.main(["average", "dark"])
"""
REFERENCE = '    "balanced_accuracy": sklearn_metrics.balanced_accuracy_score,\n'


def test_a_metric_is_a_function_its_row_and_its_reference(folder: Path, tmp_path: Path) -> None:
    copy, metrics, test = Copy(tmp_path / "code", "Add a metric"), "merganser/evaluation/metrics.py", "test_metrics.py"
    copy.insert(metrics, FUNCTION, "def pearson(")
    copy.insert(metrics, ROW, '    "pearson": Metric')
    copy.insert("merganser/evaluation/kinds/image_classification.py", ', "balanced_accuracy"', ")\nNEEDS")
    copy.insert(f"tests/evaluation/{test}", REFERENCE, '    "matthews": sklearn')
    done = copy.run(*PYTEST, f"tests/evaluation/{test}", "-k", "balanced_accuracy", folder=copy.folder)
    assert "6 passed" in done.stdout, done.stdout[-2000:]
    params = folder / "params.yaml"
    wanted = [(("tasks", "dark", "data", "metric"), "balanced_accuracy")]
    params.write_text(with_values(params.read_text(), wanted))
    done = copy.run("-c", EVALUATE, folder=folder)
    assert done.returncode == 0, done.stderr
    score = json.loads((folder / "data/metrics/average/dark.json").read_text())
    results = load_file(folder / "data/examples/average/dark.safetensors")
    assert score["metric"] == "balanced_accuracy"
    assert score["value"] == pytest.approx(balanced_accuracy_score(results["label"], results["prediction"]))
    assert np.isfinite(score["stderr"])
