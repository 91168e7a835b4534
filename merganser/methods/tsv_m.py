"""TSV-Merge: each task's leading singular vectors, made orthogonal to the other tasks'."""

from typing import Literal

import torch
from torch import Tensor

from merganser.inputs.layers import LayerFactors
from merganser.linalg.joint import polar_factors, whitened
from merganser.linalg.svd import leading, rebuilt
from merganser.merging.method import Fraction, Scaling, method, spaced
from merganser.operators.coefficients import share_needed, triples_kept
from merganser.operators.sums import total


@method(
    family="spectral",
    formula=r"\lambda\, U_\perp \Sigma V_\perp^\top, "
    r"\quad U_\perp, V_\perp = \mathrm{polar}\big([U_1 \cdots U_T]\big), \mathrm{polar}\big([V_1 \cdots "
    r"V_T]\big)",
    involvement="VDI",
    paper="Gargiulo et al., CVPR 2025, arXiv:2412.00081",
    law="at full rank without whitening it is task arithmetic; the merged singular values are the kept ones",
    rank_fraction=share_needed,
    searched={"scaling": spaced(0.0, 3.0, 0.1)},
    copies=7,
)
def tsv_m(
    layer: LayerFactors,
    *,
    rank_fraction: Fraction | None = None,
    orthogonalise: bool = True,
    whitening: Literal["procrustes", "eigenvalues"] = "procrustes",
    scaling: Scaling = 1.0,
) -> Tensor:
    """Set the tasks' leading singular vectors side by side and whiten them, keeping every kept singular value.

    `rank_fraction` is the share of each spectrum kept, 1/T by default. A matrix too small to give each task a component
    is averaged like a vector. The paper's ablations: `rank_fraction: 1` (no low rank), `orthogonalise: false` (the
    truncated deltas are added as they are), and both, which is task arithmetic. `whitening: eigenvalues` divides by the
    root of the vectors' Gram matrix as its appendix D.2.1 computes it: the same up to rounding, where the tasks'
    vectors are independent.
    """
    count = triples_kept(layer, rank_fraction)
    if count == 0:
        deltas = torch.stack([rebuilt(leading(f, len(f.s))) for f in layer.factors])
        return (scaling * total(deltas) / len(deltas)).to(deltas.dtype)
    if not orthogonalise:
        cut = torch.stack([rebuilt(leading(factors, count)) for factors in layer.factors])
        return (scaling * total(cut)).to(cut.dtype)
    us, ss, vhs = zip(*(leading(factors, count) for factors in layer.factors), strict=True)
    dtype = layer.factors[0].s.dtype
    if whitening == "eigenvalues":
        return (whitened(torch.cat(us, 1)) * (scaling * torch.cat(ss)) @ whitened(torch.cat(vhs))).to(dtype)
    (left, _, u), (vh, _, right) = polar_factors(torch.cat(us, 1)), polar_factors(torch.cat(vhs))
    merged = torch.linalg.multi_dot(
        [left.double(), u.double() * (scaling * torch.cat(ss)), vh.double(), right.double()]
    )
    return merged.to(dtype)
