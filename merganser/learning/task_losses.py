"""The losses of each task's examples, with the task's own head.

Without labels it is the entropy of the predictions, with them the cross-entropy of a few examples of each class. Shape
legend: B examples, C classes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import TaskSetup, open_setup
from merganser.inputs.heads import Head
from merganser.learning.batches import Batches
from merganser.learning.loop import Loss
from merganser.learning.settings import LabelledSettings, LearnerSettings
from merganser.models import DeviceName, Network

LABEL = "label"


def entropy(logits: Tensor) -> Tensor:
    """Return the mean entropy of the predictions (B, C), in nats.

    >>> import torch
    >>> float(entropy(torch.tensor([[0.0, 0.0], [100.0, 0.0]]))) / torch.log(torch.tensor(2.0))
    tensor(0.5000)
    """
    logs = log_softmax(logits, dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()


@dataclass(frozen=True)
class TaskLoss:
    """One task's examples, and the network and head that score them."""

    task: str
    network: Network
    evaluator: Evaluator
    prepared: Prepared
    head: Mapping[str, Tensor]

    def __call__(self, weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Return the mean entropy of some examples by a model with these weights; differentiable in them."""
        return entropy(self.logits(weights, rows))

    def logits(self, weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Return the logits (B, C) of some examples by a model with these weights, in float32 or wider."""
        logits = self.evaluator.class_logits(self.network, self.prepared, {**weights, **self.head}, rows)
        return logits.float() if logits.dtype.itemsize < 4 else logits


def open_losses(
    family: str, folder: Path, data: Mapping[str, Prepared], heads: Mapping[str, Head], device: DeviceName
) -> list[TaskLoss]:
    """Build the tasks' networks with the base's parameters: one for each number of outputs, with shared storage."""
    base, losses, loaded = open_checkpoint(folder), list[TaskLoss](), list[Network]()
    for task, setup in zip(data, open_setups(family, folder, data, heads, device), strict=True):
        if setup.network not in loaded:
            setup.load((name, base.read(name)) for name in base.names)
            loaded.append(setup.network)
        own = {name: value.float().to(setup.network.device) for name, value in setup.head.tensors.items()}
        losses.append(TaskLoss(task, setup.network, setup.evaluator, data[task], own))
    return losses


def open_setups(
    family: str, folder: Path, data: Mapping[str, Prepared], heads: Mapping[str, Head], device: DeviceName
) -> list[TaskSetup]:
    """Build the tasks' networks without values: one for each number of outputs, with shared storage."""
    networks = dict[int | None, Network]()
    setups = []
    for task, prepared in data.items():
        others = list(networks.values())
        setups.append(open_setup(family, folder, task, prepared, heads[task], networks, device))
        if setups[-1].network not in others:
            share(setups[-1].network, others)
    return setups


def share(network: Network, others: Iterable[Network]) -> None:
    """Let a network use another one's storage for parameters of the same name and shape."""
    for other in others:
        known = dict(other.module.named_parameters())
        for name, parameter in network.module.named_parameters():
            if name in known and known[name].shape == parameter.shape:
                parameter.data = known[name].data
        return


@dataclass(frozen=True)
class LabelledLoss:
    """A task's mean cross-entropy on some labelled examples, which are numbered from 0."""

    task: TaskLoss
    examples: Sequence[int]
    labels: Tensor  # of all examples

    def __call__(self, weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Return the mean cross-entropy of some examples by a model with these weights; differentiable in them."""
        places = [self.examples[row] for row in rows]
        logits = self.task.logits(weights, places)
        return cross_entropy(logits, self.labels[places].to(logits.device))


def loss_and_examples(task: TaskLoss, of: Batches, settings: LearnerSettings) -> tuple[Loss, Batches]:
    """Return a task's loss and its examples: the labelled ones if the learner uses labels, else the loss as it is."""
    if not isinstance(settings, LabelledSettings):
        return task, of
    few = few_labelled(task, of, settings.examples)
    return few, replace(of, count=len(few.examples))


def few_labelled(task: TaskLoss, of: Batches, count: int) -> LabelledLoss:
    """Choose so many examples of each class, the first of one random order; raise InputError if there are fewer."""
    labels = example_labels(task.prepared)
    counts = Counter[int]()
    examples = []
    for place in of.order("labelled"):
        label = int(labels[place])
        counts[label] += 1
        if counts[label] <= count:
            examples.append(place)
    for label, name in enumerate(task.prepared.classes):
        if counts[label] < count:
            has = (
                f"{task.prepared.folder}: {counts[label]} examples of the class {name!r}, and learning asks for {count}"
            )
            raise InputError(f"{has}; lower `examples` under learned, or name another split of {task.task}")
    return LabelledLoss(task, examples, labels)


def example_labels(prepared: Prepared) -> Tensor:
    """Read the labels; raise InputError if an example has none."""
    labels, classes = prepared.array(LABEL), len(prepared.classes)
    if len(outside := ((labels < 0) | (labels >= classes)).nonzero()):
        place = int(outside[0])
        has = (
            f"{prepared.folder}: example {place} has the label {int(labels[place])}; the classes are 0 to {classes - 1}"
        )
        raise InputError(f"{has}: the labels are needed to learn from; name a split that has them")
    return labels
