"""A small part for each task."""

import torch
from torch import Tensor

from benchmarks.plain.factors import svd
from benchmarks.plain.states import State, is_matrix


def dts_t(vectors: list[State], rank_fraction: float = 0.3) -> list[State]:
    """Threshold each task's leading singular vectors, and its vectors, to two bits an element (DTS, 2025)."""
    return [thresholded(vector, rank_fraction) for vector in vectors]


def thresholded(vector: State, rank_fraction: float) -> State:
    """Store each matrix as thresholded U and V and its singular values, everything else thresholded directly."""
    stored = {}
    for name, delta in vector.items():
        if not is_matrix(name, delta):
            stored[f"{name}.codes"], stored[f"{name}.scales"] = two_bits(delta)
            continue
        u, s, vh = svd(delta.flatten(1))
        kept = int(rank_fraction * len(s))
        u, s, vh = u[:, :kept], s[:kept], vh[:kept]
        turned = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()  # or the signs would be LAPACK's choice
        stored[f"{name}.u_codes"], stored[f"{name}.u_scales"] = two_bits(turned * u)
        stored[f"{name}.v_codes"], stored[f"{name}.v_scales"] = two_bits(turned.mT * vh)
        stored[f"{name}.s"] = s.contiguous()
    return stored


def two_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split the positive and the negative entries at their medians: packed codes, and each group's signed scale."""
    positive, negative = values > 0, values < 0
    large = positive & (values > values[positive].median()) | negative & (values <= values[negative].median())
    codes = (2 * negative + large).to(torch.uint8)
    scales = torch.stack([values[codes == code].square().mean().sqrt() for code in range(4)])
    fours = torch.nn.functional.pad(codes.flatten(), (0, -codes.numel() % 4)).view(-1, 4)
    packed = fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6
    return packed, scales.nan_to_num() * torch.tensor([1, 1, -1, -1])


def restored(stored: State, name: str, shape: tuple[int, ...]) -> Tensor:
    """Give back one parameter's delta."""
    if f"{name}.codes" in stored:
        return decoded(stored[f"{name}.codes"], stored[f"{name}.scales"], shape)
    s = stored[f"{name}.s"]
    u = decoded(stored[f"{name}.u_codes"], stored[f"{name}.u_scales"], (shape[0], len(s)))
    columns = torch.Size(shape[1:]).numel()
    return (u * s @ decoded(stored[f"{name}.v_codes"], stored[f"{name}.v_scales"], (len(s), columns))).reshape(shape)


def decoded(packed: Tensor, scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Put each element's scale in its place."""
    codes = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], 1).flatten()[: torch.Size(shape).numel()]
    return scales[codes.long()].reshape(shape)
