"""The model and examples of a task's statistics: its own model or the base, and examples drawn by seed and task.

The first examples may be of one class.

Legend: B examples of a batch, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import TaskSetup, inputs_of
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.task_models import own_model, own_parameter
from merganser.models import Network
from merganser.operators.drop import generator_of

MASK = "attention_mask"  # of texts: where a row is not padding


@dataclass(frozen=True)
class Sample:
    """Some of a task's prepared examples, by number."""

    task: str
    seed: int
    prepared: Prepared
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.numbers)

    def batches(self, network: Network, size: int) -> Iterator[dict[str, Tensor]]:
        """Yield a network's inputs, at most so many examples at a time; texts of one length together, without padding.

        Raises InputError if the prepared arrays are not inputs of a network.
        """
        names, prepared = inputs_of(network, self.prepared), self.prepared
        lengths = dict.fromkeys(self.numbers, 0)
        if MASK in names:
            lengths = {number: int(prepared.rows([MASK], [number])[MASK].sum()) for number in self.numbers}
        for length in sorted(set(lengths.values())):
            alike = [number for number in self.numbers if lengths[number] == length]
            for start in range(0, len(alike), size):
                yield prepared.rows(names, alike[start : start + size])


def draw(prepared: Prepared, examples: int, seed: int, task: str) -> Sample:
    """Draw so many of a task's examples, or all if there are fewer; raise InputError if there are none."""
    if not len(prepared):
        raise InputError(f"{prepared.folder}: no examples to measure {task} on; name another split under validation")
    order = torch.randperm(len(prepared), generator=generator_of(seed, task, "examples"))
    return Sample(task, seed, prepared, tuple(sorted(order[:examples].tolist())))


def draw_label(logits: Tensor, sample: Sample, number: int) -> int:
    """Draw a label by the model's probabilities (logits of one example, C), from the seed, task and example alone."""
    shares = torch.softmax(logits.detach().double().cpu(), dim=0).cumsum(dim=0)
    generator = generator_of(sample.seed, sample.task, f"label of {number}")
    drawn = torch.rand(1, generator=generator, dtype=torch.float64)
    return min(int(torch.searchsorted(shares, drawn * shares[-1], right=True)), len(shares) - 1)


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
