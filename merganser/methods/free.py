"""FREE-Merging: a merge of what task vectors hold of high frequency, and of each task an expert of a few entries."""

from collections.abc import Callable
from functools import partial
from math import log

import torch
from torch import Tensor

from merganser.at_run_time.additions import router
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks
from merganser.linalg.cuts import Cut, each_trimmed, kept
from merganser.merging.method import Densities, NonNegative, method
from merganser.operators.coefficients import PerTask, each_of
from merganser.operators.sums import total
from merganser.operators.ties import vector_cut
from merganser.overlays.parts import Parts, sparse


def magnitudes(layer: LayerDeltas, cut: Cut) -> Tensor:
    """Sum, in float64, the magnitudes of each task's entries and of those that its cut keeps: (2, T), on the CPU."""
    sums = torch.zeros(2, len(layer.tasks), dtype=torch.float64, device=layer.deltas.device)
    for block, trimmed in zip(blocks(layer.deltas), each_trimmed(layer.deltas, cut), strict=True):
        sums += torch.stack([side.abs().sum(1, dtype=torch.float64) for side in (block, trimmed)])
    return sums.cpu()


def factors(layers: LayerSource, cut: Cut, density: PerTask) -> tuple[list[float], list[float]]:
    """Return each task's coefficient in the shared merge and the factor of its expert, over the whole vector.

    A mean over kept and dropped entries alike divides by the same number everywhere, so that sums do.
    """
    whole, largest = torch.stack(list(layers.map(partial(magnitudes, cut=cut)))).sum(0)
    shares = torch.where(whole > 0, whole / whole.sum(), 0)
    logs = torch.tensor([-log(each) for each in each_of(density, layers.tasks)], dtype=torch.float64)
    return shares.tolist(), torch.where(whole > 0, largest * logs / (shares * whole), 0).tolist()


@method(
    family="routed",
    formula=r"\mathrm{HP}_c\Big(\sum_j \lambda_j \Delta_j\Big) + \sum_t g_t(x)\, \mu_t\, \mathrm{top}_d(\Delta_t), "
    r"\quad \lambda_t = \frac{\mathbb{E}|\Delta_t|}{\sum_j \mathbb{E}|\Delta_j|}, "
    r"\quad \mu_t = -\frac{\mathbb{E}|\mathrm{top}_d(\Delta_t)| \ln d}{\lambda_t\, \mathbb{E}|\Delta_t|}",
    involvement="VDI",
    paper="Zheng and Wang, 2024, arXiv:2411.16815",
    law="without a cutoff and at density 1 every task gets the weighted sum; one task is exact",
    cost="fourier transform",
    ours=("cutoff",),
    at_run_time=router,
    copies=6,
)
def free(
    layers: LayerSource, *, cutoff: NonNegative = 0.1, density: Densities = 0.01, experts: bool = True
) -> Callable[[LayerDeltas], Parts]:
    """Merge the tasks' deltas without their low frequencies; add of a task's largest entries what a router gives it.

    `cutoff` is in cycles per entry: 0 drops nothing, and nothing is left above sqrt(1/2). Convolutions count as
    matrices, and what has one dimension is merged as it is. The means of magnitudes, and what `density` keeps for an
    expert, are of the whole vector. With `experts: false`, as in its ablation, every example gets the filtered merge
    alone; what is stored of a task is then an empty mask. An entry reads `routers/NAME` (`of: deltas`): a router of the
    base model's features. Examples are evaluated without their task's label; each task's class head is given.
    """
    cut = vector_cut(layers, density)
    shares, scales = factors(layers, cut, density)

    def merge(layer: LayerDeltas) -> Parts:
        shared = filtered(total(layer.deltas, shares), cutoff).to(layer.dtype)
        masks = kept(layer.deltas, cut) if experts else torch.zeros_like(layer.deltas, dtype=torch.bool)
        of_tasks = zip(layer.tasks, scales, layer.deltas, masks, strict=True)
        return Parts({task: sparse(shared + scale * delta, mask) for task, scale, delta, mask in of_tasks}, shared)

    return merge


def filtered(summed: Tensor, cutoff: float) -> Tensor:
    """Drop the low frequencies of a parameter; the filter is linear, so that of a sum it is the sum of all filtered."""
    if summed.dim() < 2:
        return summed
    return high_pass(summed.flatten(1), cutoff).reshape(summed.shape)


def high_pass(matrix: Tensor, cutoff: float) -> Tensor:
    """Drop the frequencies of a matrix (M, N) that are nearer to zero than `cutoff`, in cycles per entry.

    A frequency is signed: the last row of the transform is as low as the second. Its distance from zero is at most
    sqrt(1/2). What is left is real, whatever M and N are.

    >>> high_pass(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), 0.1)  # the mean is the frequency zero
    tensor([[-2., -1.],
            [ 0.,  3.]])
    """
    rows, columns = matrix.shape
    down, along = (f(n, dtype=torch.float64) for f, n in ((torch.fft.fftfreq, rows), (torch.fft.rfftfreq, columns)))
    passes = torch.hypot(down.unsqueeze(1), along) >= cutoff
    spectrum = torch.fft.rfft2(matrix.double()) * passes.to(matrix.device)
    return torch.fft.irfft2(spectrum, s=(rows, columns)).to(matrix.dtype)
