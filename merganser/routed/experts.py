"""Evaluate without the task's label: each example by the shared model and as much of each task's part as it looks like.

Legend: B examples of a batch, T tasks, C classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.reading import open_for_merging
from merganser.errors import InputError
from merganser.inputs.heads import Head
from merganser.inputs.task_models import own_model
from merganser.models import Generates, Inputs, Network
from merganser.overlays import FILE, OverlayFile
from merganser.routed import ROUTER
from merganser.routed.counting import Counts
from merganser.routed.mixtures import Mixtures, open_mixtures
from merganser.routed.router import read_router, shares


@contextmanager
def routed(network: Network, merged: Path, head: Head | None = None) -> Iterator[Counts]:
    """While the block runs, score each example by the experts that the router of a merged model's folder gives it.

    The shared model, with a head in place of its own where one is given, is loaded into the network and stays there.
    """
    check_scores(network, f"{merged / ROUTER}")
    shared, overlays, router = open_for_merging(merged), OverlayFile(merged / FILE), read_router(merged)
    if set(router.tasks) != set(overlays.tasks):
        raise InputError(f"{merged / ROUTER}: its tasks are not those of {FILE}; merge again")
    model = own_model(shared, None)
    network.load(head.put_on(model) if head else model)
    counts, mixtures = Counts(router.tasks), open_mixtures(shared, overlays)
    order = [router.tasks.index(task) for task in overlays.tasks]

    def score(inputs: Inputs) -> Tensor:
        probabilities = router.probabilities(network.features(inputs).float().cpu())
        counts.take(probabilities.argmax(dim=1))
        return _score(network, mixtures, shares(probabilities)[:, order], inputs)

    with _scored_by(network, score):
        yield counts


def check_scores(network: Network, where: str) -> None:
    """Refuse a network that writes text, naming the place: its answers are not scored example by example."""
    if isinstance(network, Generates):
        raise InputError(f"{where}: examples are routed where classes or numbers are scored, not where text is written")


@torch.inference_mode()
def _score(network: Network, mixtures: Mixtures, wanted: Tensor, inputs: Inputs) -> Tensor:
    """Score a batch, the examples of the same shares (B, T) together: (B, C)."""
    kinds, kind_of = wanted.unique(dim=0, return_inverse=True)
    dtype, found = next(network.module.parameters()).dtype, list[tuple[Tensor, Tensor]]()
    for number, model in enumerate(mixtures.models(kinds)):
        places = (kind_of == number).nonzero()[:, 0]
        parameters = {name: value.to(network.device, dtype) for name, value in model.items()}
        batch = {name: values[places.to(values.device)] for name, values in inputs.items()}
        found.append((places, network.forward(parameters, batch)))
    order = torch.cat([places for places, _ in found]).argsort()
    return torch.cat([scores for _, scores in found])[order.to(network.device)]


@contextmanager
def _scored_by(network: Network, score: Callable[[Inputs], Tensor]) -> Iterator[None]:
    """While the block runs, have a network score classes by a function in place of its own."""
    vars(network)["logits"] = score
    try:
        yield
    finally:
        del vars(network)["logits"]
