"""Routers of a network's blocks as what is learned: all weights stay, and each example is routed by itself.

Memory: the tasks' vectors of the MLPs, whole, and one model.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource
from merganser.learning import Values
from merganser.learning.batches import Batches
from merganser.learning.loop import fixed_loss, merged_weights
from merganser.learning.settings import RoutingSettings
from merganser.learning.task_losses import TaskLoss
from merganser.models import HasBlocks
from merganser.operators.sums import scaled_sum
from merganser.operators.weight_ensembling import blend, routers_of


@dataclass(frozen=True)
class BlockRouting:
    """What is learned: each block's router, in networks that share all other parameters."""

    first: Values
    layers: LayerSource
    losses: Sequence[TaskLoss]
    batches: Sequence[Batches]  # of the same tasks
    blocks: Mapping[str, Sequence[str]]
    shared: Mapping[str, Tensor]  # merged weights, of parameters that are not mixed
    vectors: Mapping[str, Tensor]  # (T, ...), of those that are
    device: torch.device

    def start(self) -> Values:
        """Return the routers that give every example the same share of every task."""
        return self.first

    def slope(self, values: Values, step: int) -> tuple[float, Values]:
        """Return the loss on a step's batches, added over the tasks, and its gradient with respect to the routers."""
        leaves, total = self._leaves(values), 0.0
        with self._mixing(leaves):
            for loss, batches in zip(self.losses, self.batches, strict=True):
                found = loss(self.shared, batches.rows(step))
                found.backward()
                total += float(found.detach())
        return total, {name: torch.zeros_like(x) if x.grad is None else x.grad.cpu() for name, x in leaves.items()}

    def check(self, values: Values) -> float:
        """Return the loss on the fixed examples; on the same path through the network as `slope`."""
        with self._mixing(self._leaves(values)):
            return fixed_loss(self.losses, self.batches, self.shared)

    def _leaves(self, values: Values) -> Values:
        return {name: value.detach().to(self.device).requires_grad_() for name, value in values.items()}

    def _mixing(self, leaves: Values) -> ExitStack:
        """Route in all networks while the stack is open."""
        stack, mixed = ExitStack(), blend(routers_of(leaves), self.vectors)
        for network in {id(loss.network): loss.network for loss in self.losses}.values():
            assert isinstance(network, HasBlocks)
            stack.enter_context(network.blending(mixed))
        return stack


def open_routing(
    first_routers: Callable[[Mapping[str, int], int, Any, int], Values],
    settings: RoutingSettings,
    seed: int,
    layers: LayerSource,
    base: Checkpoint,
    losses: Sequence[TaskLoss],
    batches: Sequence[Batches],
    device: torch.device,
) -> BlockRouting:
    """Merge what is not mixed by task arithmetic, and read the tasks' vectors of what is.

    Raises InputError for a network whose blocks' MLPs are not known, or of which none is merged.
    """
    network = losses[0].network
    if not isinstance(network, HasBlocks):
        raise InputError("this family's network names no MLPs of its blocks; learned.*.learner: choose another")
    blocks = merged_blocks(network, layers)
    for loss in losses:
        loss.network.module.requires_grad_(False)
    mixed = {name for names in blocks.values() for name in names}

    def read(layer: Layer) -> Tensor:
        assert isinstance(layer, LayerDeltas)
        if layer.name in mixed:
            return layer.deltas.to(device, copy=True)
        return scaled_sum(layer.deltas, settings.scaling)

    found = dict(zip(layers.names, layers.map(read), strict=True))
    widths = {block: base.spec(network.blocks()[block][0]).shape[1] for block in blocks}
    return BlockRouting(
        first=first_routers(widths, len(layers.tasks), settings, seed),
        layers=layers,
        losses=losses,
        batches=batches,
        blocks=blocks,
        shared={
            name: weights.to(device)
            for name, weights in merged_weights(base, ((n, d) for n, d in found.items() if n not in mixed))
        },
        vectors={name: found[name] for name in mixed},
        device=device,
    )


def merged_blocks(network: HasBlocks, layers: LayerSource) -> dict[str, list[str]]:
    """Name the parameters of each block's MLP that are merged; raise InputError where there are none."""
    found = {}
    for block, maps in network.blocks().items():
        names = [f"{each.removesuffix('weight')}{end}" for each in maps for end in ("weight", "bias")]
        found[block] = [name for name in names if name in layers.names]
    found = {block: names for block, names in found.items() if names}
    if not found:
        first = next(iter(network.blocks().values()))[0]
        raise InputError(f"parameters.merged: no parameter of a block's MLP is merged, such as {first}; match them too")
    return found
