"""mergekit's methods: the entry of `methods` with the same merge, or the reason why none has it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from merganser.errors import InputError, did_you_mean

Entry = tuple[str, dict[str, Any]]  # our method and its parameters
IGNORED = ("int8_mask",)  # changes what mergekit's masks take of memory, and no number
FLAGS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}  # YAML 1.1, as text in 1.2
SMALL = 1e-8  # of a sum of weights that is taken for zero
LEAST_STEP = 1e-6  # of an entry, by which nearswap divides; a smaller one is taken for this large
REFUSED = {
    "passthrough": "copies or stacks one model's layers; there is nothing to merge",
}
SPARSE: dict[str, tuple[str, bool, bool, bool]] = {  # what is kept; elects signs; normalises, rescales by default
    "ties": ("largest", True, True, False),
    "dare_ties": ("random", True, False, True),
    "dare_linear": ("random", False, False, True),
    "breadcrumbs": ("middle", False, False, False),
    "breadcrumbs_ties": ("middle", True, False, False),
    "della": ("random_by_size", True, True, True),
    "della_linear": ("random_by_size", False, False, True),
}


@dataclass(frozen=True)
class Inputs:
    """The models of a merge by name, and their parameters at one place."""

    base: str | None
    tuned: tuple[str, ...]  # all but the base
    read: Callable[[str, str | None], Any]  # (parameter, model): the value, or None
    everywhere: bool = True  # the parameters are the same at all places

    @property
    def all(self) -> tuple[str, ...]:
        """Return all models, the base first."""
        return (self.base, *self.tuned) if self.base else self.tuned

    def number(self, key: str, model: str | None = None, default: float | None = None) -> float:
        """Return a number; raise InputError if there is none."""
        value = self.read(key, model)
        value = default if value is None else value
        place = f"{model}: {key}" if model else key
        if value is None:
            raise InputError(f"{place}: missing; mergekit asks for it")
        try:
            number = float(value)  # mergekit takes "1e-3", which YAML reads as text
        except (TypeError, ValueError):
            number = nan
        if not isfinite(number):
            raise InputError(f"{place}: expected a number, got {value!r}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.read(key, None)
        value = FLAGS.get(value.lower(), value) if isinstance(value, str) else value
        if value is not None and value not in (0, 1):  # True and 1.0 are equal to 1
            raise InputError(f"{key}: expected true or false, got {value!r}")
        return default if value is None else bool(value)

    def numbers(self, key: str, models: tuple[str, ...], default: float | None = None) -> dict[str, float]:
        """Return one number per model."""
        return {model: self.number(key, model, default) for model in models}


def _linear(inputs: Inputs) -> Entry:
    weights = inputs.numbers("weight", inputs.all)
    total = sum(weights.values())
    if not inputs.flag("normalize", True):
        if abs(total - 1) > SMALL:
            reason = f"the weights add up to {total:g}: without normalize mergekit scales the models themselves"
            raise InputError(f"normalize: {reason}; let them add up to 1, or normalize")
        return "task_arithmetic", {"coefficients": weights, "scaling": 1.0}
    if abs(total) <= SMALL:
        raise InputError("weight: they add up to 0, by which normalize divides")
    if min(weights.values()) >= 0:
        return "average", {"coefficients": weights}
    return "task_arithmetic", {"coefficients": {name: each / total for name, each in weights.items()}, "scaling": 1.0}


def _task_arithmetic(inputs: Inputs) -> Entry:
    weights = inputs.numbers("weight", inputs.tuned)
    total = sum(weights.values())
    divisor = total if inputs.flag("normalize", False) and abs(total) > SMALL else 1.0
    coefficients = {name: each / divisor for name, each in weights.items()}
    return "task_arithmetic", {"coefficients": coefficients, "scaling": inputs.number("lambda", default=1.0)}


def _sparse(name: str) -> Callable[[Inputs], Entry]:
    keep, elect, normalised, rescaled = SPARSE[name]

    def entry(inputs: Inputs) -> Entry:
        density = inputs.numbers("density", inputs.tuned, 1.0)
        weights = inputs.numbers("weight", inputs.tuned)
        for model, share in density.items():
            if share <= 0 and inputs.everywhere:
                raise InputError(f"{model}: density: {share:g} keeps nothing of it; leave the model out")
            if share <= 0:  # here it adds nothing
                density[model], weights[model] = 1.0, 0.0
        averaging = "disjoint" if inputs.flag("normalize", normalised) else "sum"
        values = {
            "keep": keep,
            "density": {model: min(share, 1.0) for model, share in density.items()},
            "rescale": inputs.flag("rescale", rescaled),
            "elect": elect,
            "averaging": averaging,
            "coefficients": weights,
            "scaling": inputs.number("lambda", default=1.0),
        }
        if keep == "middle":
            values["gamma"] = 1 - _one(inputs, "gamma", 0.01)
        if keep == "random_by_size":
            values["eps"] = 2 * _one(inputs, "epsilon", 0.15)
        return "sparse_arithmetic", values

    return entry


def _one(inputs: Inputs, key: str, default: float) -> float:
    """Return a number that must be the same for all models."""
    values = inputs.numbers(key, inputs.tuned, default)
    if len(set(values.values())) > 1:
        raise InputError(f"{key}: {values}: Merganser has one for all models; give them the same")
    return next(iter(values.values()))


def _slerp(inputs: Inputs) -> Entry:
    base, other = _two(inputs, inputs.all)
    ratio = inputs.number("t")
    if not 0 <= ratio <= 1:
        raise InputError(f"t: expected a number from 0 to 1, got {ratio:g}: beyond its ends the arc is not merged")
    return "slerp", {"coefficients": {base: 1 - ratio, other: ratio}}


def _nuslerp(inputs: Inputs) -> Entry:
    _two(inputs, inputs.tuned)
    weights = inputs.numbers("weight", inputs.tuned)
    if min(weights.values()) < 0:
        raise InputError(f"weight: {weights}: expected numbers from 0 on: beyond its ends the arc is not merged")
    if sum(weights.values()) < 1e-6:  # mergekit's own bound
        weights = dict.fromkeys(weights, 1.0)
    granularity = "column" if inputs.flag("nuslerp_row_wise", False) else "row"  # as mergekit computes, not as it says
    whole = inputs.flag("nuslerp_flatten", True)
    values = {"of": "deltas" if inputs.base else "models", "granularity": "parameter" if whole else granularity}
    return "nuslerp", {**values, "coefficients": weights}


def _two(inputs: Inputs, models: tuple[str, ...]) -> tuple[str, ...]:
    if len(models) != 2:
        raise InputError(f"models: expected two models to go between, got {len(models)}: {', '.join(models)}")
    return models


def _model_stock(inputs: Inputs) -> Entry:
    if len(inputs.tuned) < 2:
        raise InputError(f"models: expected two or more besides the base, got {len(inputs.tuned)}")
    return "model_stock", {"granularity": "row" if inputs.flag("filter_wise", False) else "parameter"}


def _sce(inputs: Inputs) -> Entry:
    density = inputs.number("select_topk", default=1.0)
    if density <= 0:
        raise InputError(f"select_topk: {density:g} selects nothing")
    return "sce", {"density": min(density, 1.0)}


def _arcee_fusion(inputs: Inputs) -> Entry:
    _two(inputs, inputs.all)
    return "arcee_fusion", {}


def _multislerp(inputs: Inputs) -> Entry:
    weights = inputs.numbers("weight", inputs.tuned)
    total = sum(weights.values())
    if min(weights.values()) < 0 or total <= SMALL:
        raise InputError(
            f"weight: {weights}: expected numbers from 0 on, not all 0: beyond that no mean has a direction"
        )
    if not inputs.flag("normalize_weights", True) and abs(total - 1) > SMALL:
        reason = f"the weights add up to {total:g}, by which mergekit then stretches the merge"
        raise InputError(f"normalize_weights: {reason}; let them add up to 1, or normalize")
    return "multislerp", {"of": "deltas" if inputs.base else "models", "coefficients": weights}


def _nearswap(inputs: Inputs) -> Entry:
    _two(inputs, inputs.all)
    limit = inputs.number("t")
    if limit < LEAST_STEP:
        raise InputError(f"t: expected {LEAST_STEP:g} or more, got {limit:g}: mergekit then takes a share of each step")
    return "nearswap", {"limit": limit}


def _ram(inputs: Inputs) -> Entry:
    return "ram", {"eps": inputs.number("epsilon", default=1e-5), "boost": 0.0}


def _ramplus_tl(inputs: Inputs) -> Entry:
    boost, limit = inputs.number("r", default=0.1), inputs.number("alpha", default=0.2)
    return "ram", _ram(inputs)[1] | {"boost": boost, "limit": limit, "granularity": "parameter"}


@dataclass(frozen=True)
class Kin:
    """How to convert a method of mergekit's: whether it needs a base, and the parameters that it reads."""

    entry: Callable[[Inputs], Entry]
    needs_base: bool
    reads: tuple[str, ...]
    takes_base: bool = False  # the base is a model like the others


SHARED = ("weight", "density", "normalize", "rescale", "lambda")
KIN: Mapping[str, Kin] = {
    "linear": Kin(_linear, False, ("weight", "normalize"), takes_base=True),
    "task_arithmetic": Kin(_task_arithmetic, True, ("weight", "normalize", "lambda")),
    **{
        name: Kin(_sparse(name), True, (*SHARED, *{"middle": ("gamma",), "random_by_size": ("epsilon",)}.get(keep, ())))
        for name, (keep, *_) in SPARSE.items()
    },
    "slerp": Kin(_slerp, True, ("t",), takes_base=True),
    "nuslerp": Kin(_nuslerp, False, ("weight", "nuslerp_flatten", "nuslerp_row_wise")),
    "model_stock": Kin(_model_stock, True, ("filter_wise",)),
    "karcher": Kin(lambda _: ("karcher", {}), False, ("max_iter", "tol"), takes_base=True),
    "sce": Kin(_sce, True, ("select_topk",)),
    "arcee_fusion": Kin(_arcee_fusion, True, ()),
    "multislerp": Kin(_multislerp, False, ("weight", "normalize_weights", "eps")),
    "nearswap": Kin(_nearswap, True, ("t",)),
    "ram": Kin(_ram, True, ("epsilon",)),
    "ramplus_tl": Kin(_ramplus_tl, True, ("epsilon", "r", "alpha")),
}
PARAMETERS = frozenset({*IGNORED, "scale"}).union(*(kin.reads for kin in KIN.values()))


def kin_of(method: str) -> Kin:
    """Return the conversion of a mergekit method; raise InputError naming an unsupported one."""
    if method in REFUSED:
        raise InputError(f"merge_method: {method}: {REFUSED[method]}")
    if method not in KIN:
        near = did_you_mean(method, KIN) or f"; these can be brought over: {', '.join(KIN)}"
        raise InputError(f"merge_method: {method}: mergekit's methods of this name are not known here{near}")
    return KIN[method]
