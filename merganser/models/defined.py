"""Check outputs before they become predictions: NaN is no class and has no rank."""

from collections.abc import Callable, Mapping

from torch import Tensor

from merganser.errors import InputError


def defined(outputs: Tensor) -> Tensor:
    """Return outputs (..., C); raise InputError for a row without a finite largest value. Others may be -inf."""
    if not outputs.amax(dim=-1).isfinite().all():
        reason = "the model's outputs are not finite (NaN or infinite), so no score can be computed"
        raise InputError(f"{reason}; set evaluation.precision to float32, or change or remove the entry")
    return outputs


def checking(
    logits: Callable[[Mapping[str, Tensor]], Tensor], outputs: int | None, family: str
) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """Return a network's `logits` that raises InputError for scores that are not finite, or of another head's shape.

    `outputs`: of the task's own head; None where it is not built with one.
    """

    def checked(inputs: Mapping[str, Tensor]) -> Tensor:
        scores = logits(inputs)
        if scores.dim() < 2 or outputs not in (None, scores.shape[-1]):
            expected = f"(examples, {'classes' if outputs is None else outputs})"
            raise InputError(
                f"merganser/models/families/{family}.py: logits has the shape {tuple(scores.shape)}, "
                f"not {expected}: correct it"
            )
        return defined(scores)

    return checked
