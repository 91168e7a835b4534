"""Methods: a function of one layer, or of all of them, with the properties that it declares by `@method`.

Parameters, their defaults, types and bounds come from the function's signature.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from torch import Tensor

from merganser.at_run_time import Addition, Section
from merganser.checkpoints.kinds import Kind
from merganser.errors import InputError, did_you_mean
from merganser.inputs.layers import MERGE_WORK, Layer, LayerLowRank, LayerSource, Side
from merganser.learning import Learner
from merganser.merging.about import (
    REGISTERED,
    About,
    Cost,
    Efficiency,
    Reads,
    choice_mistake,
    first_paragraph,
    follows,
    needs_of,
)
from merganser.merging.binding import LAYERS, bound, pattern_mistake, variants
from merganser.merging.parameters import (
    EVERY_TASK,
    Count,
    Densities,
    Fraction,
    Fractions,
    LearningRate,
    NonNegative,
    Positive,
    PositiveFraction,
    Rate,
    Rates,
    Scaling,
    SignedWeights,
    Thresholds,
    Truncation,
    Weights,
    parameter_model,
)
from merganser.operators.coefficients import INVERSE_NORM
from merganser.operators.vectors import scaled_mean, whole
from merganser.overlays.budget import Fitting
from merganser.overlays.parts import Parts

__all__ = [
    "EVERY_TASK",
    "REGISTERED",
    "Count",
    "Declaration",
    "Densities",
    "Fraction",
    "Fractions",
    "LearningRate",
    "Method",
    "NonNegative",
    "Positive",
    "PositiveFraction",
    "Rate",
    "Rates",
    "Result",
    "Scaling",
    "SignedWeights",
    "Thresholds",
    "Truncation",
    "Weights",
    "method",
    "spaced",
]

Result = Tensor | Parts
F = TypeVar("F", bound=Callable[..., Any])
SHIPPED = Path(__file__).parents[1] / "methods"
TAKEN = {"layer": {*get_args(Layer)}, "layers": {LayerSource}, "parameter": {LayerSource}}  # by the first argument
RENAMED = {("coefficients", "nan"): INVERSE_NORM}  # values of earlier versions


def spaced(first: float, last: float, by: float) -> tuple[float, ...]:
    """List the numbers from the first to the last, at equal steps.

    >>> spaced(0.1, 0.3, 0.1)
    (0.1, 0.2, 0.3)
    """
    return tuple(round(first + number * by, 9) for number in range(round((last - first) / by) + 1))


@dataclass(frozen=True, kw_only=True)
class Declaration(About):
    """The declaration of a method by `@method`: its description, its inputs and its properties.

    The decorated function takes one layer and returns its merge. Or it takes `layers`, reads them as often as it
    needs, and returns a function of one layer. Or it takes a `parameter`, a source of that parameter's pieces, and
    returns a function of one piece.
    """

    reads: Reads | None = None  # None: statistics where it needs any; svd where it takes factors; else deltas
    cost: Cost | None = None  # None: that of what it reads, or of the joint decomposition; else a pass over the entries
    # What merges vectors; alike: the function. None: alike, but where it decomposes a mean, or each task's own.
    vectors: Callable[..., Result] | Literal["alike"] | None = None
    statistics: tuple[str, ...] = ()  # fields of a layer's statistics that it needs
    embeddings: bool = False  # also needs the text embeddings of the tasks' class names
    learner: Learner | None = None  # how the values are learned that it applies
    linear_maps: bool = False  # keeps parts of linear maps alone and their biases, not of convolutions
    at_run_time: Addition | None = None  # what is put into a network at evaluation, beside its parameters
    joint: Side | None = None  # the joint decomposition it starts from, read from `layer.basis` if cached
    on_models: bool | Callable[..., bool] = False  # works on models' weights (**values): has the base's beside deltas
    most_tasks: int | None = None  # that it merges; None: any number
    weighted: bool = True  # accepts `coefficients` and a `scaling` per task, if it stores no parts and learns no values
    measured: Callable[..., Result] = scaled_mean  # of what layers measured of their inputs; parts are each task's own
    weighs: bool = False  # is given deltas as they are, and multiplies them by `layer.weights` itself
    in_order: bool = False  # takes one task after another, by their names: another order is another merge
    by_rows: bool = False  # merges each row by itself, given the first pass: a piece as it merges the whole
    copies: float = MERGE_WORK  # peak memory of a merge, in float32 copies of the layer that it is given, with that one
    rank_fraction: Callable[..., float] | None = None  # (tasks, **values): the share of each spectrum it needs
    within: Fitting | None = None  # by what its parts are brought to so many bytes; None: their size is what it is
    draws: Callable[..., bool] | None = None  # (**values): whether it draws at random, so that the seed matters
    not_by_layer: Collection[str] = ()  # parameters that are the whole merge's
    refuses: Callable[..., str | None] | None = None  # (**values): what is wrong with values that are right one by one

    def __call__(self, function: F) -> F:
        """Register a pure function as the method of its name; raise InputError where it cannot be one."""
        if mistake := choice_mistake(vars(self)) or _signature_mistake(function):
            raise InputError(f"{function.__name__}: {mistake}")
        named = _named([*get_type_hints(function).values()])
        declared = follows(vars(self), [each.__name__ for each in named if isinstance(each, type)])
        more = {
            "low_rank": LayerLowRank in named,
            "vectors": self.vectors
            or ((whole if declared["overlay"] else scaled_mean) if "svd" in declared["cost"] else "alike"),
        }
        REGISTERED[function.__name__] = Method(function=function, **vars(self) | declared | more)
        return function


method = Declaration


@dataclass(frozen=True, kw_only=True)
class Method(Declaration):
    """A registered method: its function and its properties."""

    function: Callable[..., Any]
    reads: Reads
    overlay: bool  # stores parts per task: its function gives Parts
    low_rank: bool  # also takes a LayerLowRank; otherwise adapters are multiplied out first
    cost: Cost
    efficiency: Efficiency
    vectors: Callable[..., Result] | Literal["alike"]

    @property
    def name(self) -> str:
        """Return the function's name, which is also its file's."""
        return self.function.__name__

    @cached_property
    def shipped(self) -> bool:
        """Tell whether it is one of Merganser's, which change no tensor of a layer."""
        return Path(inspect.getfile(inspect.unwrap(self.function))).parent == SHIPPED

    @property
    def doc(self) -> str:
        """Return its docstring."""
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        """Return what it does, in one sentence."""
        return first_paragraph(self.doc)

    @property
    def first_pass(self) -> bool:
        """Tell whether the function takes all layers and returns a function of one layer."""
        return self._takes == "layers"

    @property
    def by_parameter(self) -> bool:
        """Tell whether the function takes all pieces of a parameter and returns a function of one piece."""
        return self._takes == "parameter"

    @property
    def _takes(self) -> str:
        return next(iter(inspect.signature(self.function).parameters))

    @property
    def factored(self) -> bool:
        """Tell whether the function takes matrices as factors of the deltas or of the differences."""
        return self.reads in ("svd", "differences")

    @property
    def needs(self) -> list[str]:
        """List the inputs that the method reads."""
        return needs_of(vars(self), self.trained)

    @property
    def divided(self) -> frozenset[Kind]:
        """Return the kinds of parameters that can be merged in pieces of some rows, with the same result."""
        if self.by_rows or self.by_parameter:
            return frozenset({"matrix", "vector"})
        averages = self.vectors is scaled_mean and not self.first_pass and self.reads in ("deltas", "svd")
        return frozenset({"vector"} if averages else {})

    @property
    def trained(self) -> Section | None:
        """Return the section of params.yaml with what is trained for a merge; an entry reads it."""
        return self.at_run_time.TRAINED if self.at_run_time else None

    @property
    def one_model(self) -> bool:
        """Tell whether a merge is one model for all tasks, without parts per task."""
        return not self.overlay and self.at_run_time is None

    @cached_property
    def parameters(self) -> type[BaseModel]:
        """Return the pydantic model that validates an entry's parameters."""
        hints = get_type_hints(self.function, include_extras=True)
        keywords = [p for p in inspect.signature(self.function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        given = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in keywords}
        return parameter_model(self.name, given, self.weighted)

    @cached_property
    def every_task(self) -> frozenset[str]:
        """Return the parameters whose map must name every task."""
        fields = self.parameters.model_fields.items()
        return frozenset(name for name, field in fields if EVERY_TASK in field.metadata)

    def validate(self, entry: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check an entry's parameters and fill in the defaults; raise InputError that names each mistake.

        Each pattern of `layers` keeps only the values that it sets.
        """
        mistakes: list[str] = []
        filled = self._checked(entry, {key: value for key, value in values.items() if key != LAYERS}, mistakes)
        given, by_pattern = values.get(LAYERS, {}), {}
        if not isinstance(given, Mapping):
            mistakes.append(f"{entry}.{LAYERS}: expected a map from patterns to parameters, got {given!r}")
        for pattern, own in given.items() if isinstance(given, Mapping) else ():
            place = f"{entry}.{LAYERS}.{pattern}"
            if mistake := pattern_mistake(pattern):
                mistakes.append(f"{place}: {mistake}")
            elif not isinstance(own, Mapping) or not own:
                known = ", ".join(key for key in self.parameters.model_fields if key not in self.not_by_layer)
                mistakes.append(f"{place}: expected a map with values of {known or 'none'}, got {own!r}")
            else:
                mistakes += [f"{place}.{key}: is one for all layers" for key in own if key in self.not_by_layer]
                checked = self._checked(place, own, mistakes)
                by_pattern[pattern] = {key: value for key, value in checked.items() if key in own}
        made = filled | ({LAYERS: by_pattern} if by_pattern else {})
        if self.refuses is not None and not mistakes:
            refusals = [self.refuses(**each) for each in variants(made)]
            mistakes += [f"{entry}.{mistake}" for mistake in refusals if mistake]
        if mistakes:
            raise InputError("\n".join(dict.fromkeys(mistakes)))
        return made

    def _checked(self, place: str, values: Mapping[str, Any], mistakes: list[str]) -> dict[str, Any]:
        try:
            return self.parameters.model_validate(values).model_dump()
        except ValidationError as error:
            errors = error.errors()
            below = [mistake for mistake in errors if mistake["type"] == "greater_than_equal"]
            named = {mistake["loc"][0] for mistake in below if mistake["loc"][0] == "coefficients"}
            errors = [each for each in errors if each["loc"][0] not in named or each in below]  # the true reason alone
            mistakes += [_explain(self, place, values, mistake) for mistake in errors]
            return {}

    def is_random(self, values: Mapping[str, Any]) -> bool:
        """Tell whether a merge with these values, the result of `validate`, depends on the seed."""
        return self.draws is not None and any(self.draws(**each) for each in variants(values))

    def takes_base(self, values: Mapping[str, Any]) -> bool:
        """Tell whether a merge with these values, the result of `validate`, also reads the base's weights."""
        if isinstance(self.on_models, bool):
            return self.on_models
        return any(self.on_models(**each) for each in variants(values))

    def share_needed(self, tasks: int, values: Mapping[str, Any]) -> float | None:
        """Return the share of each spectrum that a merge of so many tasks needs; None if the method declares none."""
        if self.rank_fraction is None:
            return None
        return max(self.rank_fraction(tasks, **each) for each in variants(values))

    def check_count(self, tasks: int, where: str) -> None:
        """Raise InputError where there are more tasks than the method merges; `where`: the start of the message."""
        if self.most_tasks is not None and tasks > self.most_tasks:
            most = f"{self.name} merges at most {self.most_tasks} models, got {tasks}"
            raise InputError(f"{where}: {most}; take some out, or another method")

    def bind(self, values: Mapping[str, Any], layers: LayerSource) -> Callable[[Layer], Result]:
        """Return a function that merges one layer into the merged delta, or into parts per task.

        This computes the tasks' weights and runs the method's first pass over all layers. `values` are the result of
        `validate`. Raises InputError if a map by task, such as `coefficients`, names an unknown task.
        """
        self.check_count(len(layers.tasks), "tasks")
        return bound(self, values, layers)


def _signature_mistake(function: Callable[..., Any]) -> str | None:
    hints, parameters = get_type_hints(function), [*inspect.signature(function).parameters.values()]
    if not parameters or not TAKEN.get(parameters[0].name, set()) & _named(hints.get(parameters[0].name)):
        return "takes first layer: LayerDeltas or LayerFactors, or layers or parameter: LayerSource"
    for each in parameters[1:]:
        if each.name in (*TAKEN, "method", "reads"):
            return f"{each.name}: an entry's own key; name the parameter otherwise"
        if each.kind is not each.KEYWORD_ONLY or each.name not in hints:
            return (
                f"{each.name}: a parameter is a keyword with a type: write *, before the first, and its type behind it"
            )
    return None


def _named(hint: Any) -> set[Any]:
    """Return the types that an annotation, or a list of them, names."""
    inner = hint if isinstance(hint, list) else get_args(hint)
    return set().union(*map(_named, inner)) if inner else {hint}


def _explain(method: Method, entry: str, values: Mapping[str, Any], mistake: Any) -> str:
    key = str(mistake["loc"][0])
    if mistake["type"] == "extra_forbidden":
        known = list(method.parameters.model_fields)
        offer = did_you_mean(key, known)
        return (
            f"{entry}.{key}: {method.name} has no such parameter{offer or '; it has ' + (', '.join(known) or 'none')}"
        )
    if mistake["type"] == "missing":
        return f"{entry}.{key}: missing; {method.name} has no default for it"
    given = values.get(key, mistake["input"])  # else the default
    if isinstance(given, str) and (key, given) in RENAMED:
        return f"{entry}.{key}: {given} was renamed to {RENAMED[key, given]}"
    if mistake["type"] == "greater_than_equal" and key == "coefficients":
        task = mistake["loc"][-1]
        reason = f"{method.name} divides by sums of weights, and with such a one they can be 0"
        return f"{entry}.{key}.{task}: expected 0 or more, got {mistake['input']!r}: {reason}"
    if len(mistake["loc"]) > 1:  # one message for all the types that a parameter accepts
        expected = method.parameters.model_fields[key].description or mistake["msg"]
        return f"{entry}.{key}: expected {expected}, got {given!r}"
    return f"{entry}.{key}: {mistake['msg']}, got {mistake['input']!r}"
