"""Pictures of one class each, scored by the model's own head: the class with the highest output against the label."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from merganser.evaluation import KindSettings, Names
from merganser.evaluation.columns import class_outputs
from merganser.evaluation.examples import Results, compare_predictions
from merganser.evaluation.kinds.image_classification import (
    METRICS,
    check_data,
    classes,
    columns,
    prepare,
    scored_labels,
)
from merganser.evaluation.prepared import Prepared
from merganser.models import ClassifiesImages, Network, TakesImages

NEEDS = (TakesImages, ClassifiesImages)
PIPELINE = "image-classification"  # of the families that score it
TOKENS = None

__all__ = ["METRICS", "NEEDS", "TOKENS", "check_data", "classes", "columns", "prepare"]


class Settings(KindSettings):
    """The classes' names if not the data's own, and the numbers of the head's outputs that stand for no class.

    The other outputs, in their order, are the classes.
    """

    classes: Annotated[Names, Field(min_length=2)] | None = None
    masked: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)


def outputs(classes: Sequence[str], settings: Settings) -> int:
    """Count the classes and the outputs that stand for no class."""
    return len(classes) + len(set(settings.masked))


def class_logits(
    network: Network, prepared: Prepared, settings: Settings, parameters: Mapping[str, Tensor], rows: Sequence[int]
) -> Tensor:
    """Return the class logits (B, C) of pictures with these parameters instead of the loaded ones; differentiable."""
    return class_outputs(network.forward(parameters, prepared.rows(["pixels"], rows)), settings.masked)


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare the likeliest class of each picture with its label."""
    batches = prepared.batches(["pixels"], batch_size)
    chosen = [class_outputs(network.logits(batch), settings.masked).argmax(dim=1).cpu() for batch in batches]
    return compare_predictions(metric, torch.cat(chosen).numpy(), scored_labels(prepared))
