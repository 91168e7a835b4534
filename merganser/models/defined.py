"""Check outputs before they become predictions: NaN is no class and has no rank."""

from torch import Tensor

from merganser.errors import InputError


def defined(outputs: Tensor) -> Tensor:
    """Return outputs (..., C); raise InputError for a row without a finite largest value. Others may be -inf."""
    if not outputs.amax(dim=-1).isfinite().all():
        reason = "the model's outputs are not finite (NaN or infinite), so no score can be computed"
        raise InputError(f"{reason}; set evaluation.precision to float32, or change or remove the entry")
    return outputs
