"""An adapter put onto its base: the fine-tuned model whole, where its difference from another model is wanted."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.binding import bind
from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.checkpoints.tensors import Spec


@dataclass(frozen=True)
class Adapted:
    """A base with a bound adapter's updates added, in float32 where there are any."""

    base: Checkpoint
    adapter: Adapter

    @property
    def names(self) -> tuple[str, ...]:
        """Return the base's names, sorted."""
        return self.base.names

    def __contains__(self, name: str) -> bool:
        return name in self.base

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""
        spec = self.base.spec(name)
        return Spec("F32", spec.shape) if name in self.adapter.updates else spec

    def read(self, name: str) -> Tensor:
        """Read one tensor of the base and add the adapter's update to it."""
        weights = self.base.read(name)
        if name not in self.adapter.updates:
            return weights
        return weights.to(torch.float32) + self.adapter.delta(name, weights)


def open_whole(path: Path, base: Path, rules: ParameterRules, task: str) -> Checkpoint:
    """Open a task's model, an adapter's put onto the base it was trained on."""
    model = open_model(path)
    if not isinstance(model, Adapter):
        return model
    checkpoint = open_checkpoint(base)
    return Adapted(checkpoint, bind(model, checkpoint, rules, task))
