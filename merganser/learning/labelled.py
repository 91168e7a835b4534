"""The cross-entropy of a few labelled examples of each class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import cross_entropy

from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.learning.batches import Batches
from merganser.learning.loop import Loss
from merganser.learning.settings import LabelledSettings, LearnerSettings
from merganser.learning.task_losses import TaskLoss

LABEL = "label"


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
