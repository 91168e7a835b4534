"""A router: which task an example is of, by the shared model's features.

Legend: N examples, T tasks, D features.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.limits import parse_json
from merganser.routed import ROUTER

GRID = 100  # shares are multiples of one hundredth


@dataclass(frozen=True)
class Router:
    """A multinomial logistic regression."""

    tasks: tuple[str, ...]
    weight: Tensor  # (T, D)
    bias: Tensor  # (T,)

    def probabilities(self, features: Tensor) -> Tensor:
        """Return each example's probability of each task, in float64: (N, T)."""
        return torch.softmax(features.double() @ self.weight.double().T + self.bias.double(), dim=1)


def shares(probabilities: Tensor) -> Tensor:
    """Round each example's probabilities (N, T) to hundredths that add up to one: the likeliest task takes the rest.

    So examples that are clearly of one task have that task's model alone, and run together.

    >>> shares(torch.tensor([[0.996, 0.004], [0.333, 0.667]], dtype=torch.float64)).tolist()
    [[1.0, 0.0], [0.33, 0.67]]
    """
    counts = (probabilities * GRID).round()
    likeliest = probabilities.argmax(dim=1, keepdim=True)
    rest = GRID - counts.sum(dim=1, keepdim=True)
    return counts.scatter_add(1, likeliest, rest) / GRID


def write_router(folder: Path, router: Router) -> None:
    """Write a router into one file."""
    tensors = {"weight": router.weight, "bias": router.bias}
    save_tensors(folder / ROUTER, tensors, json.dumps({"tasks": router.tasks}))


def read_router(folder: Path) -> Router:
    """Read the router of a merged model's folder."""
    file = SafetensorsFile(folder / ROUTER)
    try:
        tasks = tuple(str(task) for task in parse_json(file.metadata["merganser"])["tasks"])
        router = Router(tasks, file.read("weight"), file.read("bias"))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{file.path}: not a router ({error}); merge again") from error
    if router.weight.dim() != 2 or router.bias.shape != router.weight.shape[:1] or len(tasks) != len(router.bias):
        raise InputError(f"{file.path}: its tensors are not of {len(tasks)} tasks; merge again")
    return router
