"""The examples of a statistic: drawn by seed and task, since the first ones may be of one class.

Legend: B examples of a batch, C classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import inputs_of
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
