"""The frequencies of a matrix: its two-dimensional discrete Fourier transform."""

import torch
from torch import Tensor


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
