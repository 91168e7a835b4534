"""Merge a subset of the tasks and measure the merge on each of them, many subsets in one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.reading import Checkpoint
from merganser.evaluation.image_classification import Examples, score
from merganser.evaluation.scoring import Score
from merganser.inputs.layers import LayerSource
from merganser.merging.driver import choose_device, merge
from merganser.merging.method import Method
from merganser.models import Network
from merganser.overlays import task_model


@dataclass(frozen=True)
class Bench:
    """What every merge is measured on, opened once."""

    base: Checkpoint
    network: Network
    examples: Mapping[str, Examples]  # by task
    batch_size: int


def score_merge(
    method: Method, values: Mapping[str, Any], source: LayerSource, bench: Bench, folder: Path
) -> dict[str, Score]:
    """Merge a source's tasks into a folder, as the merge stage does; return the merge's score on each of them."""
    merge(method, dict(values), source, bench.base, folder, choose_device("cpu"))
    scores: dict[str, Score] = {}
    for task in source.tasks:
        if method.overlay or not scores:  # without parts per task it is one model for all
            bench.network.load(task_model(folder, task))
        examples = bench.examples[task]
        scores[task] = score(bench.network.classifier(examples.prompts), examples, bench.batch_size)
    return scores


def values_for(values: Mapping[str, Any], subset: tuple[str, ...]) -> dict[str, Any]:
    """Leave out what maps from tasks, such as `coefficients`, say of the tasks that are not merged."""
    return {
        key: {task: value[task] for task in value if task in subset} if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
