"""Convert a mergekit configuration to a recipe of `merganser merge`, and to a comparison's params.yaml."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from merganser.checkpoints.companions import check_model
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.checkpoints.writing import TORCH
from merganser.config.recipes import RECIPE, Recipe, Source, as_yaml
from merganser.config.sections import NAME, VOCABULARIES
from merganser.errors import InputError, did_you_mean
from merganser.outputs import new_folder
from merganser.sources.named import COMMIT, hub_name
from merganser.standalone.mergekit.configuration import (
    MISSPELT,
    Configuration,
    Reference,
    layers_of,
    read_configuration,
)
from merganser.standalone.mergekit.methods import IGNORED, PARAMETERS, Inputs, Kin, kin_of
from merganser.standalone.mergekit.settings import (
    Parameter,
    VariesError,
    by_pattern,
    layer_of,
    parameters_of,
    setting_at,
)
from merganser.standalone.mergekit.tokenizers import import_tokenizer

PARAMS = "params.yaml"
BRANCH = "main"
ABOUT = """\
# From {name}, a configuration of mergekit. What is missing is how the models are measured: each task's `data`
# (docs/kinds.md), and which split (`evaluation`). The merge alone: `merganser merge {recipe} --out DIR`.
"""


@dataclass(frozen=True)
class Imported:
    """A converted merge: its models by name, our method and its parameters."""

    base: Reference
    models: Mapping[str, Reference]
    method: str
    values: Mapping[str, Any]
    dtype: Any
    tokens: TokenizerChoice
    notes: list[str]


def imported(path: Path) -> Imported:
    """Convert a configuration; raise InputError naming what cannot be expressed, and why.

    Models are not read, except the base's parameter names if values differ between parameters.
    """
    config = read_configuration(path)
    kin = kin_of(config.method)
    if config.base is None and kin.needs_base:
        raise InputError(f"base_model: missing; mergekit's {config.method} needs it")
    if config.base is not None and config.base.adapter:
        raise InputError(f"base_model: {config.base} is adapted: merge the adapter into it first, and name that model")
    if config.base not in (None, *config.inputs) and not (kin.takes_base and not kin.needs_base):
        raise InputError(f"slices: no source is {config.base}, the base_model; add it, with its layer_range")
    base = config.base or config.models[0].whole
    named = _named(config.inputs)
    for place in (Path(part) for each in named.values() for part in (each.model, each.adapter) if part):
        check_model(place)
    _check_adapters(named, base)
    notes = [*config.notes, *_parameter_notes(config, kin)]
    method, values = _entry(config, kin, named, base)
    taken = {name: each for name, each in named.items() if kin.takes_base or each != config.base}
    if not taken:
        raise InputError("models: none except the base_model")
    tokens, more = import_tokenizer(config.rest, base, named)
    return Imported(base, taken, method, values, _dtype(config.rest), tokens, [*notes, *more])


def _named(references: list[Reference]) -> dict[str, Reference]:
    """Name models after the ends of their paths, with a number for repeated names."""
    named: dict[str, Reference] = {}
    for reference in references:
        last = Path(reference.adapter or reference.model).name
        plain = re.sub("[^A-Za-z0-9_-]", "-", last).strip("-_")[:90] or "model"
        name = next(each for each in chain([plain], (f"{plain}-{n}" for n in count(2))) if each not in named)
        assert NAME.fullmatch(name), name
        named[name] = reference
    return named


def _check_adapters(named: Mapping[str, Reference], base: Reference) -> None:
    for reference in named.values():
        if reference.adapter and reference.whole != base:
            merged = f"merganser merge task_arithmetic --base {reference.model} --model it={reference.adapter}"
            reason = f"{reference}: an adapter of {reference.whole}, not of the base {base}"
            raise InputError(f"{reason}; merge it first: `{merged} --set scaling=1.0 --out DIR`, and name DIR")


def _parameter_notes(config: Configuration, kin: Kin) -> list[str]:
    """Report parameters without effect; refuse one that looks misspelt."""
    notes = []
    for key in sorted({str(key) for each in config.all_parameters for key in each}):
        if key not in PARAMETERS and (near := did_you_mean(key, PARAMETERS, MISSPELT)):
            raise InputError(f"{key}: mergekit has no such parameter{near}")
        if key not in kin.reads and key not in IGNORED:
            notes.append(f"{key}: left out; mergekit's {config.method} does not read it")
    if config.method == "karcher" and any({"max_iter", "tol"} & set(each) for each in config.all_parameters):
        notes.append("max_iter, tol: left out; Merganser's goes on until rounding errors remain")
    return notes


def _entry(config: Configuration, kin: Kin, named: Mapping[str, Reference], base: Reference) -> tuple[str, Any]:
    """Return our method and its parameters, by layer if mergekit's differ between parameters."""
    base_name = next((name for name, each in named.items() if each == config.base), None)
    tuned = tuple(name for name in named if name != base_name)

    def entry(parameter: Parameter | None) -> tuple[str, dict[str, Any]]:
        return kin.entry(Inputs(base_name, tuned, partial(_read, config, named, parameter), parameter is None))

    try:
        return entry(None)
    except VariesError:
        everywhere = _parameters_of(base)
    values_of = {parameter: entry(parameter) for parameter in everywhere}
    methods = {method for method, _ in values_of.values()}
    if len(methods) > 1:
        raise InputError("weight: negative in some layers and in others not; give all layers weights of at least 0")
    return methods.pop(), by_pattern(lambda parameter: values_of[parameter][1], everywhere)


def _read(
    config: Configuration, named: Mapping[str, Reference], parameter: Parameter | None, key: str, model: Any
) -> Any:
    """Look up a parameter's value: the model's in the slice first, then the slice's, then the common one."""
    part = config.slices[0]
    if len(config.slices) > 1:
        if parameter is None:
            raise VariesError
        part = config.slice_of(parameter.name)
        if (layer := layer_of(parameter.name)) is not None:
            parameter = replace(parameter, depth=part.depth_of(layer))
    own = (part.models.get(named[model], {}),) if model else ()
    for given in (*own, part.parameters, *config.parameters):
        if key in given:
            try:
                value = setting_at(given[key], parameter)
            except InputError as error:
                raise InputError(f"{key}: {error}") from error
            if value is not None:
                return value
    return None


def _parameters_of(base: Reference) -> list[Parameter]:
    if not Path(base.model).exists():
        reason = "values by layer or filter are for parameters by name, and the base is not on this disk"
        raise InputError(f"{base}: {reason}; download it and name its folder")
    return parameters_of(list(open_checkpoint(Path(base.model)).names), layers_of(base))


def _dtype(rest: Mapping[str, Any]) -> str | None:
    for key in ("dtype", "out_dtype"):
        if (value := rest.get(key)) is not None and str(value).removeprefix("torch.") not in TORCH:
            raise InputError(f"{key}: expected {', '.join(TORCH)}, got {value!r}")
    dtype = rest.get("out_dtype") or rest.get("dtype")
    return str(dtype).removeprefix("torch.") if dtype else None


def write_imported(config_read: Imported, config: Path, out: Path) -> None:
    """Write `merge.yaml`, the recipe, and `params.yaml`, for a comparison, into a new folder."""
    with new_folder(out) as folder:
        (folder / RECIPE).write_text(_recipe(config_read, out).text(), encoding="utf-8")
        about = ABOUT.format(name=config.name, recipe=out / RECIPE)
        (folder / PARAMS).write_text(about + as_yaml(_params(config_read, out, folder)), encoding="utf-8")


def _recipe(config_read: Imported, out: Path) -> Recipe:
    return Recipe(
        method=config_read.method,
        parameters=config_read.values,
        base=_source(config_read.base.model, config_read.base.revision, out),
        models={name: _source(*_own(each), out) for name, each in config_read.models.items()},
        dtype=config_read.dtype,
        tokenizer=config_read.tokens.tokenizer,
        rows=config_read.tokens.rows,
    )


def _own(reference: Reference) -> tuple[str, str | None]:
    if reference.adapter:
        return reference.adapter, reference.adapters_revision
    return reference.model, reference.revision


def _source(text: str, revision: str | None, out: Path) -> Source:
    """Return a model for a recipe: its path relative to the recipe's folder, or its name on a hub."""
    if Path(text).exists():
        return Source(path=text if Path(text).is_absolute() else Path(os.path.relpath(text, out)).as_posix())
    named = hub_name(text)
    if named is None:
        raise InputError(f"{text}: there is no such folder here, and it is not a name on a hub, org/name")
    return Source(hub=named[0], revision=revision)


def _params(config_read: Imported, out: Path, folder: Path) -> dict[str, Any]:
    """Return a comparison with this one merge, whose tasks have no data yet."""
    sources = folder / "sources"

    def named(name: str, text: str, revision: str | None) -> str:
        source = _source(text, revision, out)
        if source.path is not None:
            return text
        sources.mkdir(exist_ok=True)
        pinned = {"revision": revision} if revision and COMMIT.fullmatch(revision) else {"follow": revision or BRANCH}
        (sources / f"{name}.yaml").write_text(as_yaml({"hub": source.hub, **pinned}), encoding="utf-8")
        return (out / "sources" / f"{name}.yaml").as_posix()

    tasks = {name: {"source": named(name, *_own(each))} for name, each in config_read.models.items()}
    base, tokens = named("base", config_read.base.model, config_read.base.revision), config_read.tokens
    brought = {"source": base, "tokenizer": tokens.tokenizer, "rows": dict(tokens.rows)}
    return {
        "seed": 0,
        "base": {"source": str(VOCABULARIES / "merged") if tokens.tokenizer else base, "family": "causal"},
        **({"vocabularies": {"merged": brought}} if tokens.tokenizer else {}),
        "parameters": {"merged": ["*"], "matrices": "linear"},
        "tasks": tasks,
        "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
        "methods": {config_read.method: {"method": config_read.method, "reads": "deltas", **config_read.values}},
        "merge": {"device": "cpu"},
        "evaluation": {"split": "test", "batch_size": 8},
    }
