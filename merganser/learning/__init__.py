"""Learning: values that form a merged model are changed step by step, so that a loss on the tasks' data falls.

A learner is a module of `merganser/learning/learners/`, found by its file name; params.yaml names it as `learner` of an
entry of `learned`. One loop serves all of them. They differ in how values form a parameter's merged delta, and in how
the gradient of the loss with respect to the merged weights is pulled back to the values; or their values are routers in
a network's blocks, which mix the tasks' weights for each example.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from merganser.errors import InputError, did_you_mean
from merganser.learning import learners
from merganser.plugins import module_names

if TYPE_CHECKING:
    from torch import Tensor

    from merganser.inputs.layers import Layer, LayerSource
    from merganser.learning.settings import LearnerSettings

Values = dict[str, "Tensor"]  # what is learned, by names of the learner's own


class Form(Protocol):
    """How values form the merged deltas of some layers. `step` numbers the noise; None for none."""

    def start(self) -> Values:
        """Return the values to begin with."""

    def form(self, values: Values, step: int | None = None) -> "Callable[[Layer], Tensor]":
        """Return a function that gives one layer's merged delta."""

    def pull(self, values: Values, step: int | None, gradients: "Mapping[str, Tensor]") -> Values:
        """Return the gradient with respect to the values that a step moves, of those with respect to merged weights."""


@runtime_checkable
class LooksAhead(Protocol):
    """A form whose gradient is taken where an inner step leads, without a derivative of that step."""

    def ahead(self, values: Values, step: int, gradients: "Mapping[str, Tensor]") -> Values | None:
        """Return the values after the inner step, by gradients with respect to merged weights; None for no step."""


@runtime_checkable
class Penalises(Protocol):
    """A form whose loss has a term of the values alone, whose gradient `pull` adds."""

    def penalty(self, values: Values, step: int | None) -> float:
        """Return what is added to the loss."""


class Learner(Protocol):
    """What the module of a learner holds, beside one of the two functions below."""

    Settings: type["LearnerSettings"]  # the keys of its entries
    READS: Literal["deltas", "svd"]


@runtime_checkable
class FormsWeights(Learner, Protocol):
    """A learner whose values form merged weights."""

    def bind(self, layers: "LayerSource", settings: Any, seed: int) -> Form:
        """Return how values form merged deltas of these layers, which are read again and again.

        Where tasks are learned apart the layers are one task's, and its values have a first dimension of one.
        """


@runtime_checkable
class RoutesBlocks(Learner, Protocol):
    """A learner whose values are routers inside the network: in each block they mix the tasks' vectors of its MLP."""

    def routers(self, widths: Mapping[str, int], tasks: int, settings: Any, seed: int) -> Values:
        """Return the routers to begin with, of blocks whose MLPs' inputs have these widths."""


def learner_names() -> list[str]:
    """List the learners, by their files."""
    return module_names(learners.__path__)


def get_learner(name: str) -> Learner:
    """Return a learner's module; raise InputError with the nearest name when there is none of this one."""
    if name not in learner_names():
        known = f"known: {', '.join(learner_names())}"
        raise InputError(f"{name!r} is not a learner; {known}{did_you_mean(name, learner_names())}")
    learner: Learner = import_module(f"{learners.__name__}.{name}")
    return learner
