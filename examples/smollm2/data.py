"""The stage `data`: write each task's splits."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from random import Random

from datasets import ClassLabel, Features, Value

from common.saving import Split, save_splits
from common.stages import Sizes
from smollm2.tasks import TASKS, Row


def rows_of(task: str, ratings: Path, seed: int, count: int) -> list[Row]:
    """Return at most so many rows of a task in the seed's order, of each answer at most twice its share."""
    rows, answers = TASKS[task].rows(ratings, Random(seed)), TASKS[task].answers
    if not answers:
        return rows[:count]
    most, taken, kept = 2 * count // len(answers), Counter[str](), []
    for row in rows:
        taken[row[1]] += 1
        if taken[row[1]] <= most:
            kept.append(row)
    return kept[:count]


def write_data(task: str, seed: int, sizes: Sizes, ratings: Path, out: Path) -> None:
    """Write a task's splits as `datasets` saves them, with a hash of each one's content in `texts.json`.

    The columns are `text` and `answer`, and `label` where the answer is one of a few.
    """
    measured = sizes.test + sizes.validation
    rows, answers = rows_of(task, ratings, seed, measured + sizes.train), TASKS[task].answers
    parts = {"train": rows[measured:], "validation": rows[sizes.test : measured], "test": rows[: sizes.test]}
    features = {"text": Value("string"), "answer": Value("string")}
    splits = {}
    for name, part in parts.items():
        columns: dict[str, list[str]] = {"text": [text for text, _ in part], "answer": [answer for _, answer in part]}
        if answers:
            columns["label"] = columns["answer"]
        splits[name] = Split(columns, hashlib.sha256(json.dumps(part).encode()).hexdigest())
    labels = {"label": ClassLabel(names=list(answers))} if answers else {}
    save_splits(splits, Features(features | labels), out, "texts.json")
