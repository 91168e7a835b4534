"""What a method is: a function of one layer, and what it says of itself by `@method`.

Its parameters, their defaults, types and bounds come from the function's signature.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from torch import Tensor

from merganser.errors import InputError, did_you_mean
from merganser.inputs.layers import Layer, LayerLowRank, LayerSource, MappedLayers, Side, weighted
from merganser.operators.coefficients import check_maps, norm_coefficients, task_coefficients
from merganser.operators.vectors import scaled_mean, whole
from merganser.overlays.parts import Parts

Reads = Literal["deltas", "svd", "differences"]
Family = Literal["references", "arithmetic", "sparse", "spectral", "joint", "compressed", "masked"]
Cost = Literal["elementwise", "svd", "joint svd"]
Involvement = Literal["NDI", "VDI", "TTA"]  # no data, validation data, test-time adaptation
Efficiency = Literal["High", "Medium", "Low"]
Scaling = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]  # a share dropped: 1 would leave nothing to rescale
Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Result = Tensor | Parts
EXPECTED = {  # of parameters that may be of several kinds
    "coefficients": "a map from tasks to numbers, or nan",
    "rank_fraction": "a number above 0 and up to 1, or adaptive",
    "scaling": "a number, or a map from tasks to numbers",
    "tall_lambda": "a number from 0 on, or a map from tasks to such numbers",
}
REGISTERED: dict[str, "Method"] = {}


@dataclass(frozen=True)
class Method:
    """A registered method: its function and what it says of itself."""

    name: str
    function: Callable[..., Result]
    parameters: type[BaseModel]
    reads: Reads
    embeddings: bool  # needs the text embeddings of the tasks' class names too
    overlay: bool  # stores something per task
    joint: Side | None  # which joint decomposition of the tasks' matrices it starts with
    weighted: bool  # takes a coefficient per task
    low_rank: bool  # works on adapters without multiplying them out
    vectors: Callable[..., Result] | Literal["alike"]
    prepare: Callable[..., Any] | None  # first pass over all layers
    rank_fraction: Callable[..., float] | None  # share of the spectrum it needs
    family: Family
    formula: str
    paper: str
    cost: Cost
    involvement: Involvement
    efficiency: Efficiency
    ours: frozenset[str]  # parameters whose default no paper states

    @property
    def factored(self) -> bool:
        """Tell whether the function is given matrices as factors: those of the deltas, or of the differences."""
        return self.reads != "deltas"

    @property
    def needs(self) -> list[str]:
        """List what the method is computed from."""
        return [self.reads, *(["embeddings"] if self.embeddings else [])]

    def validate(self, entry: str, values: dict[str, Any]) -> dict[str, Any]:
        """Check an entry's parameters and fill in the defaults; raise InputError naming each mistake."""
        try:
            return self.parameters.model_validate(values).model_dump()
        except ValidationError as error:
            mistakes = (_explain(self, entry, values, mistake) for mistake in error.errors())
            raise InputError("\n".join(dict.fromkeys(mistakes))) from error

    def apply(self, layer: Layer, values: dict[str, Any]) -> Result:
        """Merge one layer: the merged delta, or the parts of a method that stores something per task."""
        own = _own(values)
        layer = self._given(layer, values)
        if layer.kind == "vector" and self.vectors != "alike":
            return self.vectors(layer, **own)
        return self.function(layer, **own)

    def first_pass(self, layers: LayerSource, values: dict[str, Any]) -> Any:
        """Compute what the method needs to know of all layers before the first is merged.

        Raises InputError when a map from tasks, such as `coefficients`, names a task that does not exist.
        """
        check_maps(values, layers.tasks)
        given = MappedLayers(layers, partial(self._given, values=values), keeps_deltas=not _per_task(values))
        return self.prepare(given, **_own(values)) if self.prepare else None

    def _given(self, layer: Layer, values: Mapping[str, Any]) -> Layer:
        """Put a layer into the form the function takes: weighted by task, and dense unless it works on adapters."""
        if isinstance(layer, LayerLowRank) and not self.low_rank:
            layer = layer.dense()
        return weighted(layer, _weights(layer, values)) if self.weighted else layer


def method(
    *,
    reads: Reads,
    family: Family,
    formula: str,
    paper: str,
    cost: Cost,
    involvement: Involvement,
    efficiency: Efficiency,
    ours: Collection[str] = (),
    embeddings: bool = False,
    overlay: bool = False,
    joint: Side | None = None,
    weighted: bool | None = None,
    low_rank: bool = False,
    vectors: Callable[..., Result] | Literal["alike"] | None = None,
    prepare: Callable[..., Any] | None = None,
    rank_fraction: Callable[..., float] | None = None,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Register a pure function of one layer as the method of its name.

    `formula`: the merged delta (or task t's, for a method with parts per task) in LaTeX, for the docs.
    `involvement`, `efficiency`: data involvement and computational efficiency as the survey of merging classes them
    (NDI no data, VDI validation data for tuning, TTA test-time adaptation).
    `ours`: the parameters whose default is not from the paper.
    `joint`: the function starts by decomposing the tasks' matrices together, set side by side ("rows") or one above the
    other ("columns"), and takes `layer.basis` where that was done before.
    `weighted`: take `coefficients`, one per task or "nan", and per-task `scaling`: the function is given the tasks'
    deltas already multiplied by them. By default what gives one model for all tasks does.
    `low_rank`: the function takes a LayerLowRank too; otherwise adapters are multiplied out first, layer by layer.
    `vectors`: "alike" (the function takes every parameter) or a function for parameters that are no matrices; by
    default the scaled mean, or each task's own delta whole for a method with parts per task.
    `prepare(layers, **values)`: a first streaming pass; its result reaches the function as `layer.prepared`.
    `rank_fraction(tasks, **values)`: the share of each spectrum that a method needs of the factors it reads.
    """
    takes_weights = not overlay if weighted is None else weighted

    def register(function: Callable[..., Result]) -> Callable[..., Result]:
        REGISTERED[function.__name__] = Method(
            name=function.__name__,
            function=function,
            parameters=_model_of(function, takes_weights),
            reads=reads,
            embeddings=embeddings,
            overlay=overlay,
            joint=joint,
            weighted=takes_weights,
            low_rank=low_rank,
            vectors=vectors or (whole if overlay else scaled_mean),
            prepare=prepare,
            rank_fraction=rank_fraction,
            family=family,
            formula=formula,
            paper=paper,
            cost=cost,
            involvement=involvement,
            efficiency=efficiency,
            ours=frozenset(ours),
        )
        return function

    return register


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as the function takes them: what is per task has been multiplied in."""
    own = {key: value for key, value in values.items() if key != "coefficients"}
    return own | {"scaling": 1.0} if isinstance(own.get("scaling"), Mapping) else own


def _per_task(values: Mapping[str, Any]) -> bool:
    """Tell whether any of the values is per task: a weight."""
    return values.get("coefficients") is not None or isinstance(values.get("scaling"), Mapping)


def _weights(layer: Layer, values: Mapping[str, Any]) -> tuple[float, ...]:
    """Return what each task's delta of a layer is multiplied by: its coefficient, times its scaling if it has one."""
    coefficients, scaling = values.get("coefficients"), values.get("scaling")
    given = norm_coefficients(layer.norms) if coefficients == "nan" else task_coefficients(layer.tasks, coefficients)
    own = task_coefficients(layer.tasks, scaling if isinstance(scaling, Mapping) else None, "scaling")
    return tuple(a * b for a, b in zip(given, own, strict=True))


def _model_of(function: Callable[..., Any], takes_weights: bool) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in keywords}
    if takes_weights:
        if "scaling" in fields:
            kind, default = fields["scaling"]
            fields["scaling"] = (kind | dict[str, Scaling], default)
        fields["coefficients"] = (dict[str, Scaling] | Literal["nan"] | None, None)
    return create_model(
        function.__name__, __config__=ConfigDict(extra="forbid", strict=True, validate_default=True), **fields
    )


def _explain(method: Method, entry: str, values: Mapping[str, Any], mistake: Any) -> str:
    key = str(mistake["loc"][0])
    if mistake["type"] == "extra_forbidden":
        known = list(method.parameters.model_fields)
        offer = did_you_mean(key, known)
        return (
            f"{entry}.{key}: {method.name} has no such parameter{offer or '; it has ' + (', '.join(known) or 'none')}"
        )
    if len(mistake["loc"]) > 1:  # one message for all the kinds a parameter may be of
        return f"{entry}.{key}: expected {EXPECTED.get(key, mistake['msg'])}, got {values[key]!r}"
    return f"{entry}.{key}: {mistake['msg']}, got {mistake['input']!r}"
