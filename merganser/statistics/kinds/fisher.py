"""Diagonal Fisher information: the mean over examples of the squared gradient of log p(y, x), y drawn from the model.

One label is drawn per example, and each example has its own backward pass: the square of a gradient summed over
examples or classes is not a Fisher information.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.kinds import as_matrix, is_measured
from merganser.checkpoints.tensors import parameter_of
from merganser.checkpoints.views import from_file
from merganser.errors import InputError
from merganser.inputs.factors import parameter_file_name
from merganser.inputs.statistics import StatisticsIndex
from merganser.outputs import remove_others
from merganser.statistics import BUDGET, in_passes, is_up_to_date, write_statistic
from merganser.statistics.sampling import Sample, Setting, draw_label

OF_BASE = True
NEEDS_CLASSES = True
BACKWARDS = True
FISHER, BASE_FISHER = "fisher", "base_fisher"  # the folders of what is measured
Score = Callable[[Mapping[str, Tensor], Sequence[int]], Tensor]


def measure(setting: Setting, folder: Path) -> tuple[StatisticsIndex, int]:
    """Measure the information of all parameters of the task's own model, and of the base if it is declared.

    Batch-normalisation statistics are left out: no gradient reaches them, and no method reads them.
    """
    kinds = {name: kind for name, kind in setting.deltas.kinds.items() if not is_measured(name)}
    sizes = {name: prod(setting.deltas.shape(name)) for name in kinds}

    def shown(name: str, information: Tensor) -> dict[str, Tensor]:
        turned = from_file(setting.base, name, information)
        return {each: as_matrix(value) if kinds[each] == "matrix" else value for each, value in turned.items()}

    files, done, examples = {}, 0, 0
    for what, deltas in {FISHER: setting.deltas, **({BASE_FISHER: None} if setting.of_base else {})}.items():
        sample, read = setting.load(deltas), partial(setting.parameter, deltas)
        files[what], measured = write_fishers(
            setting.score, sample, sizes, read, shown, folder / what, setting.origin, setting.budget
        )
        done, examples = done + measured, len(sample)
    passes = examples * len(files)
    return StatisticsIndex(examples, passes, passes, files), done


def write_fishers(
    score: Score,
    sample: Sample,
    sizes: dict[str, int],
    read: Callable[[str], Tensor],
    shown: Callable[[str, Tensor], Mapping[str, Tensor]],
    folder: Path,
    origin: str,
    budget: int = BUDGET,
) -> tuple[dict[str, str], int]:
    """Measure the Fisher information of a loaded network's parameters, given with their number of entries.

    `score` gives the logits (B, C) of examples by their numbers, differentiable in parameters that take the place of
    the loaded ones; `read` a parameter's weights; `shown` turns its information round as methods take it, that of a
    stack as its matrices'. Fills a folder with a file a parameter, keeping what was measured from the same `origin`.
    Returns each parameter's file, and how many files were measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_others(folder, {parameter_file_name(name) for name in sizes})
    parts: dict[str, list[str]] = {}  # the names of what is written of a parameter of the network
    for name in sizes:
        parts.setdefault(parameter_of(name), []).append(name)
    missing = [name for name, own in parts.items() if not all(is_up_to_date(folder, each, origin) for each in own)]
    for group in in_passes(missing, lambda name: 4 * sum(sizes[each] for each in parts[name]), budget):
        for name, information in fishers(score, sample, {each: read(each) for each in group}).items():
            if not information.isfinite().all():
                raise InputError(
                    f"{sample.task}: the gradient of {name} is NaN or infinite; such a model cannot be merged"
                )
            for each, values in shown(name, information).items():
                write_statistic(folder, each, values, origin)
    return {name: parameter_file_name(name) for name in sizes}, sum(len(parts[name]) for name in missing)


def fishers(score: Score, sample: Sample, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the information of some parameters, in float32; none for those that no output depends on."""
    leaves = {name: value.detach().float().requires_grad_() for name, value in weights.items()}
    sums = {name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in leaves.items()}
    for number in sample.numbers:
        (logits,) = score(leaves, [number])
        likelihood = torch.log_softmax(logits.float(), dim=0)[draw_label(logits, sample, number)]
        gradients = torch.autograd.grad(likelihood, list(leaves.values()), allow_unused=True)
        for total, gradient in zip(sums.values(), gradients, strict=True):
            if gradient is not None:
                total.addcmul_(gradient, gradient)
    return {name: total.div(len(sample)).cpu() for name, total in sums.items()}
