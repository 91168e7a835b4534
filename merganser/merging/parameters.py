"""The types of methods' parameters, and the model that validates those of one method.

Importing it brings no torch: what describes methods reads it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from merganser.errors import InputError

Scaling = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]  # of entries dropped; at 1 none would be left to rescale
Count = Annotated[int, Field(ge=0)]
LearningRate = Annotated[float, Field(gt=0, le=0.01)]  # of weights, which are seldom larger than 0.1
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
EVERY_TASK = object()  # beside a map by task: it names every task


def _said(expected: str) -> Any:
    """Return how a message describes a parameter that accepts several types."""
    return Field(description=expected)


_MAP = "or a map from tasks to such numbers"
_WEIGHTS = _said("a map from tasks to numbers, or inverse_norm")
Fractions = Annotated[Fraction | dict[str, Fraction], EVERY_TASK, _said(f"a number from 0 to 1, {_MAP}")]
Densities = Annotated[
    PositiveFraction | dict[str, PositiveFraction], EVERY_TASK, _said(f"a number above 0 and up to 1, {_MAP}")
]
Rates = Annotated[Rate | dict[str, Rate], EVERY_TASK, _said(f"a number from 0 on and below 1, {_MAP}")]
Thresholds = Annotated[NonNegative | dict[str, NonNegative], _said(f"a number >= 0, {_MAP}")]
Weights = Annotated[dict[str, NonNegative] | Literal["inverse_norm"] | None, _WEIGHTS]  # of a mean; 1 if not named
SignedWeights = Annotated[dict[str, Scaling] | Literal["inverse_norm"] | None, _WEIGHTS]  # the divisor is their sum
Truncation = Annotated[PositiveFraction | Literal["adaptive"], _said("a number above 0 and up to 1, or adaptive")]


def parameter_model(name: str, keywords: Mapping[str, tuple[Any, Any]], takes_weights: bool) -> type[BaseModel]:
    """Return the pydantic model of a method's keywords, each a type and its default (...: none).

    `takes_weights`: the method also takes `coefficients`, and a `scaling` for each task.
    """
    fields: dict[str, Any] = dict(keywords)
    if takes_weights:
        if "coefficients" in fields:
            raise InputError(f"{name}: coefficients are every entry's: name the parameter otherwise, or weighted=False")
        if "scaling" in fields:
            kind, default = fields["scaling"]
            fields["scaling"] = (
                Annotated[kind | dict[str, Scaling], _said("a number, or a map from tasks to numbers")],
                default,
            )
        fields["coefficients"] = (SignedWeights, None)
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True, validate_default=True), **fields)
