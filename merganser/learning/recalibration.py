"""Learners of batch-normalisation statistics: one pass of pictures through a merged model.

The activations of a merged model have a smaller variance than those of the tasks' models, so the mean of their running
statistics does not fit it (Jordan et al., ICLR 2023, arXiv:2211.08403).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d

from merganser.errors import InputError, quoting
from merganser.evaluation.setups import inputs_of
from merganser.learning import Learner
from merganser.learning.settings import BlockSettings
from merganser.models import ClassifiesImages, Network
from merganser.operators.drop import generator_of
from merganser.statistics.sampling import Sample

BatchNorm = BatchNorm1d | BatchNorm2d | BatchNorm3d
STATISTICS = ("running_mean", "running_var")


class RecalibrationSettings(BlockSettings):
    """How many pictures of each task recalibrate a merged model, and how many of each task are in a batch."""

    batch_size: Annotated[int, Field(ge=1)] = 16


@dataclass(frozen=True)
class Recalibration(Learner):
    """Learn the batch-normalisation statistics of the merge that the deltas start from."""

    settings: type[RecalibrationSettings] = RecalibrationSettings  # type: ignore[assignment] # it takes no steps
    of_merge: bool = True


def recalibrated(network: Network, samples: Sequence[Sample], size: int) -> dict[str, Tensor]:
    """Return the running means and variances (C,) of a loaded network on these pictures, by the checkpoint's names.

    They are the averages over the batches of each batch's mean and unbiased variance, of inputs that the layers before
    normalise by their own batch: PyTorch's train mode with `momentum=None`, as in `torch.optim.swa_utils.update_bn` and
    in `reset_bn_stats` of REPAIR's authors, except that dropout stays off. A batch has up to `size` pictures of each
    task.

    Raises InputError if the network has no running statistics, or a batch has one value per channel.
    """
    parts = {name: part for name, part in network.module.named_modules() if isinstance(part, BatchNorm)}
    layers = {name: part for name, part in parts.items() if part.track_running_stats}
    if not layers:
        raise InputError(f"{type(network.module).__name__} has no batch normalisation to recalibrate")
    run = network.logits if isinstance(network, ClassifiesImages) else network.features
    with _measuring(list(layers.values())), quoting("batch normalisation cannot be recalibrated"):
        for inputs in mixed_batches(network, samples, size):
            run(inputs)
    statistics = {f"{name}.{what}": getattr(part, what) for name, part in layers.items() for what in STATISTICS}
    return {network.stored_name(name): value.detach().cpu() for name, value in statistics.items()}  # type: ignore[attr-defined]


@contextmanager
def _measuring(layers: Sequence[BatchNorm]) -> Iterator[None]:
    """While the block runs, let layers average new statistics of their inputs."""
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.train().momentum = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.eval().momentum = momentum


def mixed_batches(network: Network, samples: Sequence[Sample], size: int) -> Iterator[dict[str, Tensor]]:
    """Yield all tasks' pictures once, in an order drawn by the seed, with an equal share of each task in each batch.

    If a task has fewer pictures than there are batches, the first batches have one each.
    """
    count = ceil(max(map(len, samples)) / size)
    names = inputs_of(network, samples[0].prepared)
    parts = []
    for sample in samples:
        order = torch.randperm(len(sample), generator=generator_of(sample.seed, sample.task, "batches"))
        parts.append([[sample.numbers[place] for place in part.tolist()] for part in order.tensor_split(count)])
    for batch in zip(*parts, strict=True):
        rows = [sample.prepared.rows(names, own) for sample, own in zip(samples, batch, strict=True) if own]
        yield {name: torch.cat([each[name] for each in rows]) for name in names}
