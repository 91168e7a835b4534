"""Small data sets of texts, and what a tiny model makes of them."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.evaluation.evaluator import Evaluator, open_evaluator
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared, write_prepared
from merganser.models import open_network
from tests.tiny_transformers import WORDS

COUNT = 24


def sentences(count: int = COUNT, seed: int = 0) -> list[str]:
    """Draw texts of one to nine words."""
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(1, 10))) for _ in range(count)]


def data_set(label: Any, labels: list[Any], *, pairs: bool = False, **columns: Any) -> DatasetDict:
    """Make the split `test`: drawn texts with labels of a type; `columns`: those that stand in their place."""
    texts = {"text": sentences(len(labels)), **({"pair": sentences(len(labels), 1)} if pairs else {})} | columns
    texts = {name: values for name, values in texts.items() if values is not None}
    kinds = {name: Value("string" if isinstance(values[0], str) else "int64") for name, values in texts.items()}
    return DatasetDict(test=Dataset.from_dict({**texts, "label": labels}, features=Features({**kinds, "label": label})))


def classes(count: int, names: list[str]) -> tuple[ClassLabel, list[int]]:
    """Return a label's type and labels of every class in turn."""
    return ClassLabel(names=names), [number % len(names) for number in range(count)]


def check(data: DatasetDict, kind: str, metric: str | None = None, **own: Any) -> Evaluator:
    """Check a data set as the stage that fetches it does; return how its task is evaluated."""
    evaluator = open_evaluator(kind, own, metric)
    evaluator.check_data(data, Path("hub/task"))
    return evaluator


def fresh(folder: Path) -> Path:
    """Make a folder that is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def prepared_in(folder: Path, chunks: Iterable[Mapping[str, Tensor]], classes: Sequence[str] = ()) -> Prepared:
    """Write what a kind prepares into a folder."""
    write_prepared(fresh(folder), chunks, {"kind": "", "settings": {}, "metric": "", "classes": list(classes)})
    return Prepared(folder)


def run(
    data: DatasetDict,
    folder: Path,
    model: Path,
    kind: str,
    metric: str | None = None,
    family: str = "encoder",
    **own: Any,
) -> Results:
    """Evaluate the encoder in a folder on a data set, five examples a batch."""
    evaluator = check(data, kind, metric, **own)
    data.save_to_disk(folder)
    network = open_network(family, model, outputs=evaluator.outputs(evaluator.classes(folder)))
    evaluator.prepare(folder, "test", network, fresh(folder / "prepared"))
    checkpoint = open_checkpoint(model)
    network.load((name, checkpoint.read(name)) for name in checkpoint.names)
    return evaluator.results(network, Prepared(folder / "prepared"), batch_size=5)
