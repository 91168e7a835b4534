"""An adapter applied to its base: the whole fine-tuned model, to subtract another model from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.binding import bind
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import Checkpoint, Spec


@dataclass(frozen=True)
class Adapted(Checkpoint):
    """A base plus a bound adapter's updates; updated tensors are in float32."""

    base: Checkpoint
    adapter: Adapter

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return the base's dtypes and shapes; tensors that the adapter changes are in float32."""
        changed = {name: Spec("F32", self.base.spec(name).shape) for name in self.adapter.updates}
        return {**self.base.specs, **changed}

    def read(self, name: str) -> Tensor:
        """Read one tensor of the base and add the adapter's update to it."""
        weights = self.base.read(name)
        if name not in self.adapter.updates:
            return weights
        return weights.to(torch.float32) + self.adapter.delta(name, weights)


def open_whole(path: Path, base: Path, rules: ParameterRules, task: str, modules: Sequence[str] = ()) -> Checkpoint:
    """Open a task's model; an adapter is applied to the base that it was trained on."""
    model = open_model(path, modules)
    if not isinstance(model, Adapter):
        return model
    checkpoint = open_checkpoint(base)
    return Adapted(checkpoint, bind(model, checkpoint, rules, task))
