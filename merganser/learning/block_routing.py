"""Learn routers of a network's blocks: the weights stay, and each example is routed on its own.

Memory holds the tasks' vectors of all MLPs, and one model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource
from merganser.learning import Values
from merganser.learning.batches import Batches
from merganser.learning.loop import Learnable, descend, fixed_loss, gradient_of, merged_weights
from merganser.learning.settings import RoutingSettings
from merganser.learning.task_losses import TaskLoss
from merganser.models.linear_maps import WithBlocks
from merganser.operators.sums import scaled_sum
from merganser.operators.weight_ensembling import blend, routers_of


def open_routing(
    first_routers: Callable[[Mapping[str, int], int, Any, int], Values],
    settings: RoutingSettings,
    seed: int,
    layers: LayerSource,
    base: Checkpoint,
    losses: Sequence[TaskLoss],
    batches: Sequence[Batches],
    device: torch.device,
) -> Learnable:
    """Set up the learning of each block's router, in networks that share all other parameters.

    Parameters outside the MLPs are merged by task arithmetic. Raises InputError if the network's blocks have no
    known MLPs, or if none of them is merged.
    """
    network = losses[0].network
    if not isinstance(network, WithBlocks):
        raise InputError("this family's network names no MLPs of its blocks; learned.*.learner: choose another")
    blocks = merged_blocks(network, layers)
    for loss in losses:
        loss.network.module.requires_grad_(False)
    widths = {block: base.spec(network.blocks()[block][0]).shape[1] for block in blocks}
    shared, vectors = _merged(settings, layers, base, {name for names in blocks.values() for name in names}, device)

    def leaves_of(values: Values) -> Values:
        return {name: value.detach().to(device).requires_grad_() for name, value in values.items()}

    def slope(values: Values, step: int) -> tuple[float, Values]:
        leaves = leaves_of(values)
        with mixing(losses, leaves, vectors):
            total = descend(losses, batches, shared, step)
        return total, {name: gradient_of(leaf) for name, leaf in leaves.items()}

    def check(values: Values) -> float:
        with mixing(losses, leaves_of(values), vectors):
            return fixed_loss(losses, batches, shared)

    first = first_routers(widths, len(layers.tasks), settings, seed)
    return Learnable(layers, batches, lambda: first, slope, check, blocks)


def mixing(losses: Sequence[TaskLoss], routers: Values, vectors: Mapping[str, Tensor]) -> ExitStack:
    """Mix the tasks' vectors in all networks by the routers' weights, until the stack closes."""
    stack, mixed = ExitStack(), blend(routers_of(routers), vectors)
    for network in {id(loss.network): loss.network for loss in losses}.values():
        assert isinstance(network, WithBlocks)
        stack.enter_context(network.blending(mixed))
    return stack


def _merged(
    settings: RoutingSettings, layers: LayerSource, base: Checkpoint, mixed: Collection[str], device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the merged weights of the parameters that are not mixed, and the tasks' vectors (T, ...) of the others."""

    def read(layer: Layer) -> Tensor:
        assert isinstance(layer, LayerDeltas)
        if layer.name in mixed:
            return layer.deltas.to(device, copy=True)
        return scaled_sum(layer.deltas, settings.scaling)

    merged = dict(zip(layers.names, layers.map(read), strict=True))
    shared = merged_weights(base, ((n, delta) for n, delta in merged.items() if n not in mixed))
    return {n: weights.to(device) for n, weights in shared}, {n: v for n, v in merged.items() if n in mixed}


def merged_blocks(network: WithBlocks, layers: LayerSource) -> dict[str, list[str]]:
    """Name the merged parameters of each block's MLP; raise InputError if there are none."""
    names_of_blocks = {}
    for block, maps in network.blocks().items():
        names = [f"{each.removesuffix('weight')}{end}" for each in maps for end in ("weight", "bias")]
        names_of_blocks[block] = [name for name in names if name in layers.names]
    names_of_blocks = {block: names for block, names in names_of_blocks.items() if names}
    if not names_of_blocks:
        first = next(iter(network.blocks().values()))[0]
        raise InputError(f"parameters.merged: no parameter of a block's MLP is merged, such as {first}; match them too")
    return names_of_blocks
