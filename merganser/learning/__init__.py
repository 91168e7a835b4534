"""Learning: values that form a merged model are changed step by step, so that a loss on the tasks' data falls.

A method whose values are learned says how by `learner=Learner(...)`; params.yaml names it as `learner` of an entry of
`learned`. One loop serves all of them. They differ in how values form a parameter's merged delta, and in how the
gradient of the loss with respect to the merged weights is pulled back to the values; or their values are routers in a
network's blocks, which mix the tasks' weights for each example.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerSource, Learned
from merganser.learning.settings import BlockSettings, LearnerSettings

Values = dict[str, Tensor]  # what is learned, by names of the learner's own


@dataclass(frozen=True)
class Form(ABC):
    """How learned values become the merged deltas of some layers, which are read many times.

    `step` seeds the noise; None: no noise. If each task is learned on its own, the layers are one task's, and its
    values have a first dimension of one.
    """

    layers: LayerSource
    settings: Any  # an instance of the learner's
    seed: int = 0

    @abstractmethod
    def start(self) -> Values:
        """Return the initial values."""

    @abstractmethod
    def form(self, values: Values, step: int | None = None) -> Callable[[Any], Tensor]:
        """Return a function that gives one layer's merged delta."""

    @abstractmethod
    def pull(self, values: Values, step: int | None, gradients: Mapping[str, Tensor]) -> Values:
        """Return the gradient with respect to the values, from the one with respect to the merged weights."""

    def ahead(self, values: Values, step: int, gradients: Mapping[str, Tensor]) -> Values | None:
        """Return the values after an inner step, where the gradient is taken; None for no inner step.

        The inner step is not differentiated.
        """
        return None

    def passes(self, step: int) -> int:
        """Count how often a step's batches go through the network: twice with an inner step."""
        return 1

    def penalty(self, values: Values, step: int | None) -> float:
        """Return the part of the loss that depends on the values alone; `pull` adds its gradient."""
        return 0.0

    @property
    def count(self) -> int:
        """Count the entries of all layers."""
        return sum(map(prod, self.layers.shapes.values()))


@dataclass(frozen=True)
class Learner:
    """What is learned for a method: values that form merged weights, or routers inside the network.

    `form`, given the layers, settings and seed, returns how the values form a merge. `routers`, given the widths of the
    inputs of the blocks' MLPs, the number of tasks, settings and seed, returns those to begin with, which mix the
    tasks' vectors of each block's MLP. `of_merge`: its entries are of differences/NAME.
    """

    settings: type[LearnerSettings]  # the keys of its entries
    form: Callable[[LayerSource, Any, int], Form] | None = None
    routers: Callable[[Mapping[str, int], int, Any, int], Values] | None = None
    of_merge: bool = False

    @property
    def takes_steps(self) -> bool:
        """Tell whether it minimises a loss, step by step."""
        return issubclass(self.settings, LearnerSettings)


@dataclass(frozen=True)
class BlockLearner(Learner):
    """A learner without steps: it merges a network's blocks one after another (`learning.block_merging`).

    `merge` merges one linear map, given the Gram matrices `gram` of its inputs after the merged blocks before it. The
    merged delta of each map that a forward pass applies is learned; all other parameters are averaged.
    """

    settings: type[BlockSettings]  # type: ignore[assignment] # it has no steps, so none of their settings
    merge: Callable[[LayerDeltas, Any], Tensor] = lambda layer, _: layer.deltas.mean(dim=0)


def learned_by(layers: LayerSource, name: str) -> Learned:
    """Return the values learned for a method on these layers.

    Raises InputError if there are none, or if they belong to another method or other parameters.
    """
    learned = layers.table.learned
    if learned is None:
        raise InputError(f"{name}: applies learned values; declare them under learned in params.yaml, and run it")
    if learned.learner != name:
        raise InputError(f"{name}: the values were learned by {learned.learner}; merge by the method of that name")
    if list(learned.names) != list(layers.names):
        raise InputError(f"{name}: the values were learned of other parameters; learn them again")
    return learned
