"""Sounds of one class each: the class with the highest output of the model's own head against the label."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from merganser.evaluation.columns import check_labels, class_numbers, class_outputs, label_names
from merganser.evaluation.examples import Results, compare_predictions
from merganser.evaluation.kinds.image_classification import METRICS, scored_labels
from merganser.evaluation.kinds.image_classifier import Settings as HeadSettings
from merganser.evaluation.kinds.image_classifier import outputs
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.sounds import AUDIO, RATE, check_sounds, longest_sound, read_sounds
from merganser.models import Network, TakesSounds

NEEDS = (TakesSounds,)
PIPELINE = "audio-classification"  # of the families that score it
TOKENS = 250  # frames of five seconds
LABEL, LENGTH = "label", "length"

__all__ = ["METRICS", "NEEDS", "TOKENS", "outputs"]


class Settings(HeadSettings):
    """The classes' names if not the data's own, and the numbers of the head's outputs that stand for no class.

    The other outputs, in their order, are the classes. Sounds longer than `max_seconds` are cut.
    """

    max_seconds: Annotated[float, Field(gt=0, le=600)] = 30


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without sounds in `audio`, or without a `label` whose classes have names."""
    check_labels(splits, settings.classes, source)
    check_sounds(splits, source)


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (AUDIO, RATE, LABEL)


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the classes by their labels."""
    return label_names(features, settings.classes)


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each sound's inputs and its `label` (-1 if it is missing)."""
    assert isinstance(network, TakesSounds)
    known = range(-1, len(classes(rows.features, settings)))
    labels = torch.tensor(class_numbers([-1 if label is None else label for label in rows[LABEL]], known))
    rate, seconds, first = network.sampling_rate(), settings.max_seconds, 0
    longest = longest_sound(rows, rate, seconds)
    for sounds in read_sounds(rows, rate, seconds):
        yield network.encode_sounds(sounds, longest) | {LABEL: labels[first : first + len(sounds)]}
        first += len(sounds)


def class_logits(
    network: Network, prepared: Prepared, settings: Settings, parameters: Mapping[str, Tensor], rows: Sequence[int]
) -> Tensor:
    """Return the class logits (B, C) of sounds with these parameters instead of the loaded ones; differentiable."""
    assert isinstance(network, TakesSounds)
    return class_outputs(network.forward(parameters, prepared.rows(network.inputs(), rows)), settings.masked)


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare the likeliest class of each sound with its label; sounds of one length are run together."""
    assert isinstance(network, TakesSounds)
    order = prepared.array(LENGTH).argsort(descending=True, stable=True)
    batches = prepared.batches(network.inputs(), batch_size, order.tolist())
    chosen = [class_outputs(network.logits(batch), settings.masked).argmax(dim=1).cpu() for batch in batches]
    predictions = torch.cat(chosen)[order.argsort()]
    return compare_predictions(metric, predictions.numpy(), scored_labels(prepared))
