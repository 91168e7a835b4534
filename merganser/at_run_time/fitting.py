"""Fit a router to features of the tasks' examples.

Legend: N examples, T tasks, D features.
"""

from collections.abc import Mapping

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from merganser.at_run_time.additions.router import Router

STEPS = 1000  # of LBFGS, at most


def fit(features: Mapping[str, Tensor], penalty: float) -> Router:
    """Fit a router to each task's features (N, D) by LBFGS in float64; all tasks have the same weight.

    The loss is the mean over the tasks of their mean negative log-likelihood, plus penalty / (2 N) times the
    squared norm of the weights of standardised features.
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
    solution = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
    weight = solution[: -len(tasks)].reshape(len(tasks), -1) / deviation
    bias = solution[-len(tasks) :] - weight @ mean
    return Router(tasks, torch.from_numpy(weight).float(), torch.from_numpy(bias).float())
