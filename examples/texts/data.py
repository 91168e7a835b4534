"""The `data` stage: draw a task's splits and save them the way the `datasets` library saves them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Features, Value

from common.saving import Split, save_splits
from common.stages import Sizes
from texts.drawing import SPLITS, Example, digest, draw
from texts.tasks import REGRESSION, TASKS


def write_dataset(task: str, seed: int, sizes: Sizes, out: Path) -> None:
    """Write the task's splits to `out`, with the hash of each one's content in `texts.json`.

    Columns: text, the second text under its task's name for it, label (a class, or for the regression a number).
    """
    drawn = {split: draw(task, split, seed, asdict(sizes)[split]) for split in SPLITS}
    splits = {name: Split(columns(task, examples), digest(examples)) for name, examples in drawn.items()}
    label = Value("int64") if task == REGRESSION else ClassLabel(names=TASKS[task].ANSWERS)
    texts = [column for column in splits["test"].columns if column != "label"]
    save_splits(splits, Features(dict.fromkeys(texts, Value("string")) | {"label": label}), out, "texts.json")


def columns(task: str, examples: Sequence[Example]) -> dict[str, list[Any]]:
    """Return the columns of a data set."""
    second = {TASKS[task].SECOND: [example.second for example in examples]} if TASKS[task].SECOND else {}
    texts = {"text": [example.text for example in examples]} | second
    return texts | {"label": [example.answer for example in examples]}
