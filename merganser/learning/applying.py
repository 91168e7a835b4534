"""Merge by what was learned: the pure part of a learner, which its method runs."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerSource, Learned


def applied(layers: LayerSource, learner: ModuleType) -> Callable[[Any], Tensor]:
    """Return the function of one layer that learned values, noise aside, form its merged delta by.

    Raises InputError as `learned_by` does.
    """
    learned = learned_by(layers, learner.__name__.rpartition(".")[2])
    settings = learner.Settings.model_validate(learned.settings)
    form: Callable[[Any], Tensor] = learner.bind(layers, settings, 0).form(dict(learned.values))
    return form


def learned_by(layers: LayerSource, name: str) -> Learned:
    """Return what a learner found for these layers.

    Raises InputError where nothing was learned, by another learner, or of other parameters.
    """
    learned = layers.learned
    if learned is None:
        raise InputError(f"{name}: applies learned values; declare them under learned in params.yaml, and run it")
    if learned.learner != name:
        raise InputError(f"{name}: the values were learned by {learned.learner}; merge by the method of that name")
    if list(learned.names) != list(layers.names):
        raise InputError(f"{name}: the values were learned of other parameters; learn them again")
    return learned
