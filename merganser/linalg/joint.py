"""Decompositions of the tasks' matrices side by side, [D_1 .. D_T] = U S [V_1^T .. V_T^T].

Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side.
"""

import torch
from torch import Tensor

from merganser.layers import Factors
from merganser.linalg.svd import compact, is_safe, of_gram


def joint(deltas: Tensor) -> Factors:
    """Decompose T matrices (T, M, N) set side by side on their numerical rank K: U (M, K), S (K), Vh (K, T * N)."""
    by_gram = None if deltas.dtype == torch.float64 else _by_gram(deltas)
    return by_gram or compact(deltas.transpose(0, 1).flatten(1))


def _by_gram(deltas: Tensor) -> Factors | None:
    """Decompose T float32 matrices side by side by the sum of their Gram matrices; None where that is of no use."""
    tasks, rows, columns = deltas.shape
    if rows > tasks * columns:
        return None
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=deltas.device)
    for delta in deltas:
        exact = delta.double()
        gram.addmm_(exact, exact.mT)
    s, vectors, known = of_gram(gram, tasks * columns)
    s, u = s[:known], vectors[:, :known]
    if not is_safe(s):
        return None
    inverse = (u / s).mT
    vh = torch.empty(known, tasks, columns, dtype=torch.float64, device=deltas.device)
    for t, delta in enumerate(deltas):
        vh[:, t] = inverse @ delta.double()
    return Factors(u, s, vh.flatten(1))
