"""A router: which task an example is of, by the shared model's features.

Legend: N examples, T tasks, D features.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.limits import parse_json
from merganser.routed import ROUTER

STEPS = 1000  # of LBFGS, at most
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


def fit(features: Mapping[str, Tensor], penalty: float) -> Router:
    """Fit a router to each task's features (N, D) by LBFGS in float64; all tasks count alike.

    The loss is the mean over the tasks of their mean negative log-likelihood, plus penalty / (2 N) times the squared
    norm of the weights of standardised features.
    """
    tasks, count = tuple(features), sum(map(len, features.values()))
    rows = torch.cat(list(features.values())).double().numpy()
    labels = np.repeat(np.arange(len(tasks)), [len(each) for each in features.values()])
    share = 1 / (len(tasks) * np.bincount(labels)[labels])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    deviation[deviation < 1e-12] = 1
    scaled = (rows - mean) / deviation
    chosen = np.eye(len(tasks))[labels]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = flat[: -len(tasks)].reshape(len(tasks), -1), flat[-len(tasks) :]
        logits = scaled @ weight.T + bias
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        error = share[:, None] * (np.exp(logs) - chosen)
        value = -(share * logs[np.arange(count), labels]).sum() + penalty / (2 * count) * (weight**2).sum()
        gradient = np.concatenate([(error.T @ scaled + penalty / count * weight).ravel(), error.sum(axis=0)])
        return float(value), gradient

    start = np.zeros(len(tasks) * (rows.shape[1] + 1))
    options = {"maxiter": STEPS, "ftol": 1e-14, "gtol": 1e-9}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
    weight = found[: -len(tasks)].reshape(len(tasks), -1) / deviation
    bias = found[-len(tasks) :] - weight @ mean
    return Router(tasks, torch.from_numpy(weight).float(), torch.from_numpy(bias).float())


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
