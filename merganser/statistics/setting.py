"""The model and examples of a task's statistics: its own model or the base, and examples drawn by the seed.

Legend: B examples of a batch, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint
from merganser.evaluation.setups import TaskSetup
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.task_models import own_model, own_parameter
from merganser.statistics.sampling import Sample, draw


@dataclass(frozen=True)
class Setting:
    """One task, its model and data. `of_base`: whether the base is measured too; `origin` identifies all inputs."""

    task: str
    seed: int
    examples: int
    of_base: bool
    base: Checkpoint
    deltas: DeltaFile
    setup: TaskSetup
    origin: str
    budget: int  # bytes that one pass over the examples adds up

    def load(self, deltas: DeltaFile | None) -> Sample:
        """Load the task's own model, or the base with the task's head, and draw the examples."""
        self.setup.load(own_model(self.base, deltas))
        return draw(self.setup.prepared, self.examples, self.seed, self.task)

    def parameter(self, deltas: DeltaFile | None, name: str) -> Tensor:
        """Return a parameter of the task's own model, or of the base, on the network's device."""
        return own_parameter(self.base, deltas, name).to(self.setup.network.device)

    def score(self, parameters: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Return the class logits (B, C) of some examples, differentiable in the parameters."""
        return self.setup.evaluator.class_logits(self.setup.network, self.setup.prepared, parameters, rows)
