"""The tasks: a prompt, and the answer that the model is to give next.

Of three the answer is one of a few words, each one token of SmolLM2, of real texts as the suite `minilm` has them; of
one it is words backwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from minilm.tasks import TASKS as LABELLED

Row = tuple[str, str]  # what the prompt is of, and the answer

WORDS = [
    *("cat", "dog", "house", "river", "stone", "green", "apple", "winter", "paper", "silver"),
    *("bread", "mountain", "little", "water", "flower", "music", "garden", "summer", "window", "orange"),
]


@dataclass(frozen=True)
class Chosen:
    """Texts of a task of `minilm`, their first words, by words for its classes."""

    cue: tuple[str, str]  # before the text, and before the answer
    of: str
    answers: tuple[str, ...]  # in the order of the classes
    longest: int  # words of a text

    def rows(self, ratings: Path, random: Random) -> list[Row]:
        """Return the texts in random order, each once."""
        found = {" ".join(islice(text.split(), self.longest)): label for text, label in LABELLED[self.of].rows(ratings)}
        rows = [(text, self.answers[int(label)]) for text, label in found.items()]
        random.shuffle(rows)
        return rows


@dataclass(frozen=True)
class Reversed:
    """Three of twenty words, to be said backwards."""

    cue: tuple[str, str]
    answers: tuple[str, ...] = ()

    def rows(self, ratings: Path, random: Random) -> list[Row]:
        """Return all choices of three words in random order."""
        del ratings
        rows = [(" ".join(words), " ".join(reversed(words))) for words in _choices()]
        random.shuffle(rows)
        return rows


def _choices() -> Iterator[tuple[str, str, str]]:
    for one in WORDS:
        for two in WORDS:
            for three in WORDS:
                if len({one, two, three}) == 3:
                    yield one, two, three


TASKS: dict[str, Chosen | Reversed] = {
    "feeling": Chosen(("Review", "Feeling"), "movies", ("negative", "positive"), longest=24),
    "library": Chosen(
        ("Docstring", "Subject"),
        "library",
        ("arrays", "science", "tables", "plots", "learning", "databases", "experiments", "workflows"),
        longest=16,
    ),
    "area": Chosen(
        ("Docstring", "Area"),
        "area",
        (
            *("statistics", "optimization", "signals", "sparse", "interpolation"),
            *("algebra", "functions", "geometry", "files", "integration"),
        ),
        longest=16,
    ),
    "reverse": Reversed(("Words", "Backwards")),
}


def prompt(task: str, text: str) -> str:
    """Return what the model is asked; suites/smollm2.yaml has the same as lm-eval's templates."""
    before, after = TASKS[task].cue
    return f"{before}: {text}\n{after}:"
