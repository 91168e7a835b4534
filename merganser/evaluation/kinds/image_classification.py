"""Pictures of one class each, scored by a head made of prompts: the likeliest class is compared with the label."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import KindSettings, Names
from merganser.evaluation.columns import batches, check_images, check_labels, class_numbers, label_names
from merganser.evaluation.examples import Results, compare_predictions
from merganser.evaluation.prepared import Prepared
from merganser.models import EmbedsTexts, Network, TakesImages

METRICS = ("accuracy", "macro_f1")
NEEDS = (TakesImages, EmbedsTexts)
TOKENS = None
CHUNK = 512  # pictures decoded at a time

Template = Annotated[str, Field(pattern=r"^[^{}]*\{\}[^{}]*$")]


class Settings(KindSettings):
    """The prompts that make the class head, with `{}` for the class name, and the names if not the data's own."""

    templates: Annotated[list[Template], Field(min_length=1)]
    classes: Annotated[Names, Field(min_length=1)] | None = None


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without an `image` column (pictures or uint8 arrays) or a `label` with class names."""
    check_labels(splits, settings.classes, source)
    check_images(splits, source)


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return ("image", "label")


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the classes by their labels."""
    return label_names(features, settings.classes)


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each picture's decoded and resized `pixels`, and its `label` (-1 if it is missing)."""
    assert isinstance(network, TakesImages)
    known, first = range(-1, len(classes(rows.features, settings))), 0
    for batch in batches(rows, CHUNK):
        labels = torch.tensor(class_numbers([-1 if label is None else label for label in batch["label"]], known, first))
        first += len(labels)
        yield {"pixels": network.pixels(batch["image"]), "label": labels}


def class_logits(
    network: Network, prepared: Prepared, settings: Settings, parameters: Mapping[str, Tensor], rows: Sequence[int]
) -> Tensor:
    """Return the class logits of some pictures with these parameters instead of the loaded ones."""
    _make_head(network, prepared, settings)
    return network.forward(parameters, prepared.rows(["pixels"], rows))


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare the likeliest class of each picture with its label."""
    _make_head(network, prepared, settings)
    chosen = [network.logits(batch).argmax(dim=1).cpu() for batch in prepared.batches(["pixels"], batch_size)]
    return compare_predictions(metric, torch.cat(chosen).numpy(), scored_labels(prepared))


def scored_labels(prepared: Prepared) -> Any:
    """Return the pictures' labels (N,); raise InputError for a missing one, which would count as a mistake."""
    labels = prepared.array("label").numpy()
    if (labels < 0).any():
        number = int((labels < 0).argmax())
        raise InputError(f"example {number} of the data has no label; leave it out, or name another split")
    return labels


def _make_head(network: Network, prepared: Prepared, settings: Settings) -> None:
    assert isinstance(network, EmbedsTexts)
    network.head([[template.format(name) for template in settings.templates] for name in prepared.classes])
