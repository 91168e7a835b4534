"""What the training loops share: optimisers, the learning rate schedule, one optimisation step, seeded batches."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer


def learning_rate_share(step: int, steps: int, warm_up: int) -> float:
    """Return the share of the peak learning rate: linear warm-up, then a cosine to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


class Muon(Optimizer):
    """Momentum, orthogonalised, for matrices (Jordan et al., 2024), computed in float32.

    torch's own computes in bfloat16, for which a CPU without instructions of its own takes 20 to 40 times as long.
    """

    def __init__(self, matrices: Sequence[Tensor], lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step with Nesterov's momentum."""
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                mean = state["mean"] = state["mean"] if state else torch.zeros_like(matrix)
                mean.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalised(matrix.grad.lerp(mean, group["momentum"]))
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonalised(update: Tensor) -> Tensor:
    """Bring all singular values of a matrix near 1, by five quintic steps of Newton and Schulz."""
    wide = update if update.shape[0] <= update.shape[1] else update.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide if update.shape[0] <= update.shape[1] else wide.T


def pretraining_optimisers(parameters: Mapping[str, Tensor], blocks: str) -> list[Optimizer]:
    """Return Muon for the matrices whose names hold `blocks` (those of the layers), and AdamW for the rest."""
    inner = {name for name, value in parameters.items() if value.ndim == 2 and blocks in name}
    return [
        Muon([parameters[name] for name in parameters if name in inner], lr=0.01, weight_decay=0.05, momentum=0.95),
        AdamW(
            [parameters[name] for name in parameters if name not in inner], 1e-3, betas=(0.9, 0.98), weight_decay=0.01
        ),
    ]


class Trainer:
    """One or more optimisers over one set of parameters, stepped together with gradients clipped to norm 1."""

    def __init__(self, optimisers: Sequence[Optimizer], parameters: Iterable[Tensor], steps: int, warm_up: int) -> None:
        self.optimisers = optimisers
        self.parameters = list(parameters)
        self.steps, self.warm_up = steps, warm_up
        self.peaks = [[group["lr"] for group in optimiser.param_groups] for optimiser in optimisers]

    def step(self, number: int, loss: Tensor) -> None:
        """Take one step down the loss."""
        share = learning_rate_share(number, self.steps, self.warm_up)
        for optimiser, peaks in zip(self.optimisers, self.peaks, strict=True):
            optimiser.zero_grad()
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * share
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimiser in self.optimisers:
            optimiser.step()


def epochs(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of indices forever; each pass is a new permutation, and an incomplete last batch is dropped."""
    batch_size = min(batch_size, count)
    while True:
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
