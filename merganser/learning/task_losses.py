"""The entropy of the predictions on each task's examples, with the task's own head: the loss without labels.

Shape legend: B examples, C classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn.functional import log_softmax

from merganser.checkpoints.reading import open_checkpoint
from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import open_setup
from merganser.inputs.heads import Head
from merganser.models import DeviceName, Network


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
    base, networks = open_checkpoint(folder), dict[int | None, Network]()
    losses = []
    for task, prepared in data.items():
        others = list(networks.values())
        setup = open_setup(family, folder, task, prepared, heads[task], networks, device)
        if setup.network not in others:
            share(setup.network, others)
            setup.load((name, base.read(name)) for name in base.names)
        own = {name: value.float().to(setup.network.device) for name, value in setup.head.tensors.items()}
        losses.append(TaskLoss(task, setup.network, setup.evaluator, prepared, own))
    return losses


def share(network: Network, others: Iterable[Network]) -> None:
    """Let a network use another one's storage for parameters of the same name and shape."""
    for other in others:
        known = dict(other.module.named_parameters())
        for name, parameter in network.module.named_parameters():
            if name in known and known[name].shape == parameter.shape:
                parameter.data = known[name].data
        return
