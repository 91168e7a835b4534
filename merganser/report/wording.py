"""How the report calls the scores of a comparison: by their metric, as scores where tasks have different ones."""

from collections.abc import Iterable
from typing import NamedTuple

from merganser.evaluation.metrics import METRICS


class Wording(NamedTuple):
    """The name of the scores of all tasks, and what they are shown in."""

    name: str
    unit: str

    @property
    def axis(self) -> str:
        """Return the label of an axis of scores."""
        return f"{self.name}, {self.unit}"


def wording_of(metrics: Iterable[str]) -> Wording:
    """Name the scores of tasks with these metrics; all are shown times 100, shares in per cent.

    >>> wording_of(["accuracy", "accuracy"])
    Wording(name='accuracy', unit='%')
    >>> wording_of(["accuracy", "matthews"]).axis
    'score, × 100'
    """
    known = list(dict.fromkeys(metrics))
    shares = all(metric in METRICS and METRICS[metric].is_share for metric in known)
    return Wording(title_of(known[0]) if len(known) == 1 else "score", "%" if shares else "× 100")


def title_of(metric: str) -> str:
    """Return a metric's name as it is written in text."""
    return METRICS[metric].title if metric in METRICS else metric
