"""What a method is: a function of one layer, or of all of them, and what it says of itself by `@method`.

Its parameters, their defaults, types and bounds come from the function's signature.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from torch import Tensor

from merganser.errors import InputError, did_you_mean
from merganser.inputs.layers import Layer, LayerLowRank, LayerSource, MappedLayers, Side, weighted
from merganser.operators.coefficients import INVERSE_NORM, check_maps, task_weights
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
    "coefficients": f"a map from tasks to numbers, or {INVERSE_NORM}",
    "rank_fraction": "a number above 0 and up to 1, or adaptive",
    "scaling": "a number, or a map from tasks to numbers",
    "tall_lambda": "a number from 0 on, or a map from tasks to such numbers",
}
RENAMED = {("coefficients", "nan"): INVERSE_NORM}  # values of earlier versions
REGISTERED: dict[str, "Method"] = {}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A registered method: its function and what it says of itself."""

    function: Callable[..., Any]
    reads: Reads
    family: Family
    formula: str  # the merged delta (task t's, for a method with parts per task) in LaTeX, for the docs
    paper: str
    cost: Cost
    involvement: Involvement  # of data, and the computational efficiency, as the survey of merging classes them
    efficiency: Efficiency
    ours: Collection[str] = ()  # parameters whose default no paper states
    embeddings: bool = False  # needs the text embeddings of the tasks' class names too
    overlay: bool = False  # stores something per task
    joint: Side | None = None  # the joint decomposition it starts with; it takes `layer.basis` where that is cached
    low_rank: bool = False  # takes a LayerLowRank too; else adapters are multiplied out first, layer by layer
    weighted: bool  # takes `coefficients` and a `scaling` per task: its function is given the deltas times these
    vectors: Callable[..., Result] | Literal["alike"]  # merges parameters that are no matrices; alike: the function
    rank_fraction: Callable[..., float] | None = None  # (tasks, **values): share of each spectrum it needs

    @property
    def name(self) -> str:
        """Return the function's name, which is its file's."""
        return self.function.__name__

    @property
    def first_pass(self) -> bool:
        """Tell whether the function is given all layers and returns the function of one."""
        return next(iter(inspect.signature(self.function).parameters)) == "layers"

    @property
    def factored(self) -> bool:
        """Tell whether the function is given matrices as factors: those of the deltas, or of the differences."""
        return self.reads != "deltas"

    @property
    def needs(self) -> list[str]:
        """List what the method is computed from."""
        return [self.reads, *(["embeddings"] if self.embeddings else [])]

    @cached_property
    def parameters(self) -> type[BaseModel]:
        """Return the model that an entry's parameters are checked by."""
        return _model_of(self.function, self.weighted)

    def validate(self, entry: str, values: dict[str, Any]) -> dict[str, Any]:
        """Check an entry's parameters and fill in the defaults; raise InputError naming each mistake."""
        try:
            return self.parameters.model_validate(values).model_dump()
        except ValidationError as error:
            mistakes = (_explain(self, entry, values, mistake) for mistake in error.errors())
            raise InputError("\n".join(dict.fromkeys(mistakes))) from error

    def bind(self, values: Mapping[str, Any], layers: LayerSource) -> Callable[[Layer], Result]:
        """Return what merges one of the layers: into the merged delta, or the parts of a method with parts per task.

        The tasks' weights are computed here, and what the method needs to know of all layers. `values` are those that
        `validate` gives. Raises InputError when a map from tasks, such as `coefficients`, names an unknown task.
        """
        check_maps(values, layers.tasks)
        weights = task_weights(values, layers.tasks) if self.weighted else None
        own = {key: value for key, value in values.items() if key != "coefficients"}
        if isinstance(own.get("scaling"), Mapping):
            own["scaling"] = 1.0  # it is in the weights

        def taken(layer: Layer) -> Layer:
            """Put a layer into the form that the function takes."""
            if isinstance(layer, LayerLowRank) and not self.low_rank:
                layer = layer.dense()
            return weighted(layer, weights(layer.norms)) if weights else layer

        if self.first_pass:
            merge_matrix = self.function(MappedLayers(layers, taken), **own)
        else:
            merge_matrix = partial(self.function, **own)
        merge_vector = merge_matrix if self.vectors == "alike" else partial(self.vectors, **own)

        def merge(layer: Layer) -> Result:
            return (merge_vector if layer.kind == "vector" else merge_matrix)(taken(layer))

        return merge


def method(*, overlay: bool = False, **about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a pure function as the method of its name; `about` it are the fields of Method.

    The function takes one layer and returns its merge. Or it takes `layers`, goes over them as often as it has to, and
    returns the function of one layer. By default what gives one model for all tasks takes a weight per task, and
    parameters that are no matrices get the scaled mean, or each task's own delta whole where there are parts per task.
    """
    defaults = {"weighted": not overlay, "vectors": whole if overlay else scaled_mean}

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REGISTERED[function.__name__] = Method(function=function, overlay=overlay, **(defaults | about))
        return function

    return register


def _model_of(function: Callable[..., Any], takes_weights: bool) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in keywords}
    if takes_weights:
        if "scaling" in fields:
            kind, default = fields["scaling"]
            fields["scaling"] = (kind | dict[str, Scaling], default)
        fields["coefficients"] = (dict[str, Scaling] | Literal["inverse_norm"] | None, None)
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
    if isinstance(values[key], str) and (key, values[key]) in RENAMED:
        return f"{entry}.{key}: {values[key]} is now written {RENAMED[key, values[key]]}"
    if len(mistake["loc"]) > 1:  # one message for all the kinds a parameter may be of
        return f"{entry}.{key}: expected {EXPECTED.get(key, mistake['msg'])}, got {values[key]!r}"
    return f"{entry}.{key}: {mistake['msg']}, got {mistake['input']!r}"
