"""Draw a task's texts: a function of (seed, task, split) alone, and no text of one split is in another."""

import hashlib
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from texts.lexicon import LEADS, TAILS
from texts.tasks import TASKS

SPLITS = ("train", "validation", "test")
PLAIN = 0
SHIFTED = range(1, 7)  # the constructions of fine-tuning and of the test
MOST_MISSES = 10_000  # draws that give nothing new; one in eight texts belongs to the smaller splits


class Example(NamedTuple):
    """A text, for some tasks a second one, and the number of the answer."""

    text: str
    second: str | None
    answer: int


def draw(task: str, split: str, seed: int, count: int) -> list[Example]:
    """Draw examples of a split; in validation and test, no text stands twice."""
    return _draw(task, split, seed, count, SHIFTED, plain=0)


def draw_pretraining(task: str, seed: int, count: int, plain: float) -> list[Example]:
    """Draw what pretraining sees: a share of plain sentences, the rest in half of the task's constructions."""
    return _draw(task, "pretrain", seed, count, TASKS[task].SEEN, plain)


def vocabulary() -> list[str]:
    """List the words of all texts, cues and answers, the same whatever the seed."""
    found = {word for task in TASKS.values() for phrase in [task.CUE, *task.ANSWERS] for word in phrase.split()}
    for name in TASKS:
        rng = _stream(0, name, "vocabulary")
        for number in range(4000):
            example = _write(rng, name, number % 7)
            found.update(f"{example.text} {example.second or ''}".split())
    return sorted(found)


def split_of(text: str) -> str:
    """Return the split that a text may stand in: an eighth each is kept for test and validation, by the text's hash."""
    eighth = hashlib.sha256(text.encode()).digest()[0] % 8
    return {0: "test", 1: "validation"}.get(eighth, "train")


def digest(examples: Sequence[Example]) -> str:
    """Return the SHA-256 of the examples' content."""
    return hashlib.sha256(repr([tuple(example) for example in examples]).encode()).hexdigest()


def _draw(task: str, split: str, seed: int, count: int, constructions: Sequence[int], plain: float) -> list[Example]:
    rng = _stream(seed, task, split)
    kept_for = "train" if split == "pretrain" else split
    examples: list[Example] = []
    seen: set[str] = set()
    misses = 0
    while len(examples) < count:
        example = _write(rng, task, PLAIN if rng.random() < plain else rng.choice(list(constructions)))
        if split_of(example.text) == kept_for and (kept_for == "train" or example.text not in seen):
            seen.add(example.text)
            examples.append(example)
            misses = 0
        elif (misses := misses + 1) == MOST_MISSES:
            raise ValueError(f"data.{split}: {task} has no {count} different texts; ask for fewer")
    return examples


def _stream(seed: int, task: str, split: str) -> Random:
    return Random(int.from_bytes(hashlib.sha256(f"{seed}/{task}/{split}".encode()).digest()[:8], "big"))


def _write(rng: Random, task: str, construction: int) -> Example:
    """Write one example; in all but plain sentences words before and after may be added."""
    text, second, answer = TASKS[task].write(rng, construction)
    if construction != PLAIN:
        text = f"{rng.choice(LEADS)} {text}" if rng.random() < 0.5 else text
        text = f"{text} {rng.choice(TAILS)}" if rng.random() < 0.5 else text
    if second and not second.endswith("?"):
        second = f"{second} ."
    return Example(f"{text} .", second, answer)
