"""An adapter put onto its base: the fine-tuned model whole, where its difference from another model is wanted."""

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
    """A base with a bound adapter's updates added, in float32 where there are any."""

    base: Checkpoint
    adapter: Adapter

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return the base's dtypes and shapes, of what the adapter changes in float32."""
        changed = {name: Spec("F32", self.base.spec(name).shape) for name in self.adapter.updates}
        return {**self.base.specs, **changed}

    def read(self, name: str) -> Tensor:
        """Read one tensor of the base and add the adapter's update to it."""
        weights = self.base.read(name)
        if name not in self.adapter.updates:
            return weights
        return weights.to(torch.float32) + self.adapter.delta(name, weights)


def open_whole(path: Path, base: Path, rules: ParameterRules, task: str, modules: Sequence[str] = ()) -> Checkpoint:
    """Open a task's model, an adapter's put onto the base it was trained on."""
    model = open_model(path, modules)
    if not isinstance(model, Adapter):
        return model
    checkpoint = open_checkpoint(base)
    return Adapted(checkpoint, bind(model, checkpoint, rules, task))
