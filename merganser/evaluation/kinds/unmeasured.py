"""No data: the task's model is merged with the others, and not measured."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.settings import KindSettings
from merganser.models import Network

METRICS = ("none",)
NEEDS = ()
TOKENS = 0
PREPARE_S = 0.0


class Settings(KindSettings):
    """No keys."""


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Accept anything: nothing is read."""


def columns(settings: Settings) -> Collection[str] | None:
    """Return no columns."""
    return ()


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Return no names."""
    return []


def outputs(classes: Sequence[str], settings: Settings) -> int | None:
    """Return None: no network is run."""
    return None


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Give nothing."""
    yield from ()


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Return the results of no examples."""
    return Results(score=np.zeros(0))
