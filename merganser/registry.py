"""The registry of methods: parameters, defaults, types and bounds come from each function's signature.

A method lives in `merganser/methods/<name>.py` as a function of that name, decorated with `@method`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from torch import Tensor

from merganser import methods
from merganser.errors import InputError, did_you_mean
from merganser.layers import Layer, LayerSource
from merganser.operators.vectors import scaled_mean, whole
from merganser.overlays.parts import Parts

Reads = Literal["deltas", "svd"]
Cost = Literal["elementwise", "svd", "joint svd"]
Scaling = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]  # a share dropped: 1 would leave nothing to rescale
Count = Annotated[int, Field(ge=0)]

_registered: dict[str, "Method"] = {}


@dataclass(frozen=True)
class Method:
    """A registered method: its function and what it says of itself."""

    name: str
    function: Callable[..., Tensor | Parts]
    parameters: type[BaseModel]
    reads: Reads
    overlay: bool  # stores something per task
    vectors: Callable[..., Tensor | Parts] | Literal["alike"]
    prepare: Callable[..., Any] | None  # first pass over all layers
    rank_fraction: Callable[..., float] | None  # share of the spectrum it needs
    paper: str
    cost: Cost
    involvement: Literal["NDI", "VDI", "TTA"]  # no data, validation data, test-time adaptation

    def validate(self, entry: str, values: dict[str, Any]) -> dict[str, Any]:
        """Check an entry's parameters and fill in the defaults; raise InputError naming each mistake."""
        try:
            return self.parameters.model_validate(values).model_dump()
        except ValidationError as error:
            raise InputError("\n".join(_explain(self, entry, mistake) for mistake in error.errors())) from error

    def apply(self, layer: Layer, values: dict[str, Any]) -> Tensor | Parts:
        """Merge one layer: the merged delta, or the parts of a method that stores something per task."""
        if layer.kind == "vector" and self.vectors != "alike":
            return self.vectors(layer, **values)
        return self.function(layer, **values)

    def first_pass(self, layers: LayerSource, values: dict[str, Any]) -> Any:
        """Compute what the method needs to know of all layers before the first is merged."""
        return self.prepare(layers, **values) if self.prepare else None


def method(
    *,
    reads: Reads,
    paper: str,
    cost: Cost,
    overlay: bool = False,
    vectors: Callable[..., Tensor | Parts] | Literal["alike"] | None = None,
    prepare: Callable[..., Any] | None = None,
    rank_fraction: Callable[..., float] | None = None,
) -> Callable[[Callable[..., Tensor | Parts]], Callable[..., Tensor | Parts]]:
    """Register a pure function of one layer as the method of its name.

    `vectors`: "alike" (the function takes every parameter) or a function for parameters that are no matrices; by
    default the scaled mean, or each task's own delta whole for a method with parts per task.
    `prepare(layers, **values)`: a first streaming pass; its result reaches the function as `layer.prepared`.
    `rank_fraction(tasks, **values)`: the share of each spectrum that a method needs of the factors it reads.
    """

    def register(function: Callable[..., Tensor | Parts]) -> Callable[..., Tensor | Parts]:
        _registered[function.__name__] = Method(
            name=function.__name__,
            function=function,
            parameters=_model_of(function),
            reads=reads,
            overlay=overlay,
            vectors=vectors or (whole if overlay else scaled_mean),
            prepare=prepare,
            rank_fraction=rank_fraction,
            paper=paper,
            cost=cost,
            involvement="NDI",
        )
        return function

    return register


def names() -> list[str]:
    """List the methods, by their files."""
    return sorted(module.name for module in pkgutil.iter_modules(methods.__path__))


def get(name: str) -> Method:
    """Return a method; raise InputError with the nearest name when there is none of this one."""
    if name not in names():
        raise InputError(f'unknown method "{name}"{did_you_mean(name, names())}; `merganser methods` lists them')
    importlib.import_module(f"merganser.methods.{name}")
    return _registered[name]


def _model_of(function: Callable[..., Any]) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in keywords}
    return create_model(
        function.__name__, __config__=ConfigDict(extra="forbid", strict=True, validate_default=True), **fields
    )


def _explain(method: Method, entry: str, mistake: Any) -> str:
    where = ".".join(str(part) for part in (entry, *mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        known = list(method.parameters.model_fields)
        offer = did_you_mean(str(mistake["loc"][0]), known)
        return f"{where}: {method.name} has no such parameter{offer or '; it has ' + (', '.join(known) or 'none')}"
    return f"{where}: {mistake['msg']}, got {mistake['input']!r}"
