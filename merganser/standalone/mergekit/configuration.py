"""Read a mergekit configuration; refuse by name what a merge of whole models by one method cannot express.

mergekit writes `slices` of layers, each with its own parameters. A merge of whole models can have several slices if
every slice names the same models and keeps each layer in its place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG as MODEL_CONFIG
from merganser.checkpoints.architecture import read_config
from merganser.checkpoints.known_models import configured
from merganser.errors import InputError, did_you_mean
from merganser.limits import read_yaml
from merganser.standalone.mergekit.settings import layer_of

KEYS = (
    *("merge_method", "models", "slices", "modules", "base_model", "parameters", "dtype", "out_dtype"),
    *("tokenizer", "tokenizer_source", "chat_template"),
)
LAYERS = "num_hidden_layers"
MODEL_KEYS = ("model", "parameters")
SOURCE_KEYS = (*MODEL_KEYS, "layer_range")
SLICE_KEYS = ("sources", "base_model", "parameters")
REFUSED_KEYS = {
    "experts": "builds a mixture of experts (mergekit-moe), which is another architecture; merge dense models",
}
MISSPELT = 0.8  # how near an unknown key is to one of mergekit's; a card's `license` is 0.77 from `slices`
REFERENCE = re.compile(r"(?P<model>[^+@]+)(@(?P<revision>[^+@]+))?(\+(?P<adapter>[^+@]+)(@(?P<of_adapter>[^+@]+))?)?")
Parameters = Mapping[str, Any]
STACKED = "that makes another model; a merge of whole models keeps every layer of every model in its place"
# A parameter of no layer by its name: mergekit's descriptions of architectures say which come before the layers.
BEFORE_LAYERS = ("*embed_tokens*", "*embed_in.*", "*wte.*", "*wpe.*", "*word_embeddings*", "*tok_embeddings*")
AFTER_LAYERS = ("*lm_head*", "*embed_out*", "*norm*", "*ln_f*")


@dataclass(frozen=True)
class Reference:
    """A model in mergekit's notation: a path or a name on a hub, and an adapter of it."""

    model: str
    revision: str | None = None
    adapter: str | None = None
    adapters_revision: str | None = None

    @property
    def whole(self) -> "Reference":
        """Return the model without the adapter."""
        return Reference(self.model, self.revision)

    def __str__(self) -> str:
        own = f"{self.model}@{self.revision}" if self.revision else self.model
        revision = f"@{self.adapters_revision}" if self.adapters_revision else ""
        return f"{own}+{self.adapter}{revision}" if self.adapter else own


@dataclass(frozen=True)
class Slice:
    """Consecutive layers of all models, with their parameters: common ones, and each model's own."""

    models: Mapping[Reference, Parameters]
    parameters: Parameters = field(default_factory=dict)
    layers: tuple[int, int] | None = None  # the first, and the one after the last; None: all

    def depth_of(self, layer: int) -> float:
        """Return a layer's relative place in the slice, from 0 (first) to 1 (last)."""
        first, end = self.layers or (0, 1)
        return (layer - first) / (end - first - 1) if end - first > 1 else 1.0


@dataclass(frozen=True)
class Configuration:
    """A merge of whole models, from a mergekit configuration."""

    method: str
    slices: Sequence[Slice]
    base: Reference | None
    parameters: tuple[Parameters, ...]  # of all models and slices, those that count first
    rest: Mapping[str, Any]  # dtype, out_dtype, tokenizer, tokenizer_source, chat_template
    notes: list[str] = field(default_factory=list)

    @property
    def models(self) -> list[Reference]:
        """Return the models, which are the same in all slices."""
        return list(self.slices[0].models)

    @property
    def inputs(self) -> list[Reference]:
        """Return what is merged: the models, and the base, which slices leave out if they do not name it."""
        added = self.base is not None and self.base not in self.models and self.slices[0].layers is None
        return [*self.models, *([self.base] if self.base and added else [])]

    @property
    def all_parameters(self) -> list[Parameters]:
        """Return every map of parameters."""
        return [*self.parameters, *(each for part in self.slices for each in (part.parameters, *part.models.values()))]

    def slice_of(self, parameter: str) -> Slice:
        """Return the slice of a parameter's values, as mergekit chooses it.

        Embeddings take the values of the first slice, the last norm and the head those of the last one.
        """
        layer = layer_of(parameter)
        if layer is not None:
            return next((each for each in self.slices if each.layers and layer < each.layers[1]), self.slices[-1])
        if any(fnmatchcase(parameter, pattern) for pattern in AFTER_LAYERS):
            return self.slices[-1]
        if any(fnmatchcase(parameter, pattern) for pattern in BEFORE_LAYERS):
            return self.slices[0]
        reason = "its name says neither that it comes before the layers nor after them, and the slices' values differ"
        raise InputError(f"slices: {parameter}: {reason}; write `models` with lists of values instead of slices")


def read_configuration(path: Path) -> Configuration:
    """Read a configuration; raise InputError naming what cannot be expressed, and why."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a configuration of mergekit: expected a map with merge_method")
    for key, reason in REFUSED_KEYS.items():
        if content.get(key):
            raise InputError(f"{path}: {key}: {reason}")
    if not content.get("merge_method"):
        raise InputError(f"{path}: not a configuration of mergekit: it has no merge_method")
    notes = _unread(content, KEYS)
    parts, inner = _one_module(content)
    if bool(parts.get("models")) == bool(parts.get("slices")):
        raise InputError(f"{path}: expected either models or slices")
    base = _base_of(content, parts)
    shared = _parameters(content.get("parameters"), "parameters")
    whole = [Slice(_each_model(parts["models"], "models"))] if parts.get("models") else []
    slices = whole or _slices(parts["slices"], base)
    notes += [note for place, each, keys in _maps_in(parts) for note in _unread(each, keys, place)]
    rest = {key: content[key] for key in KEYS[-5:] if content.get(key) is not None}
    return Configuration(str(content["merge_method"]), slices, base, (inner, shared), rest, notes)


def _base_of(content: Mapping[str, Any], parts: Mapping[str, Any]) -> Reference | None:
    """Return the base, which slices may name instead if all name the same."""
    in_slices = [part.get("base_model") for part in _as_list(parts.get("slices")) if isinstance(part, dict)]
    same = in_slices[0] if in_slices and all(each == in_slices[0] for each in in_slices) else None
    given = content.get("base_model") or same
    return reference_of(given, "base_model") if given else None


def _unread(content: Mapping[str, Any], known: Sequence[str], place: str = "") -> list[str]:
    """Name the keys that mergekit ignores; refuse one that looks misspelt."""
    notes = []
    for key in sorted(content.keys() - set(known), key=str):
        if near := did_you_mean(str(key), known, MISSPELT):
            raise InputError(f"{place}{key}: mergekit has no such key{near}")
        notes.append(f"{place}{key}: left out; mergekit does not read it")
    return notes


def _maps_in(parts: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Sequence[str]]]:
    """Yield each map of a model, slice and source with its place and the keys that mergekit reads there."""
    for number, model in enumerate(_as_list(parts.get("models"))):
        yield f"models[{number}].", model, MODEL_KEYS
    for number, part in enumerate(_as_list(parts.get("slices"))):
        yield f"slices[{number}].", part, SLICE_KEYS
        for place, source in enumerate(_as_list(part.get("sources"))):
            yield f"slices[{number}].sources[{place}].", source, SOURCE_KEYS


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _one_module(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], Parameters]:
    """Return the map with `models` or `slices`, perhaps inside the only module, and the module's parameters."""
    modules = content.get("modules")
    if not modules:
        return content, {}
    default = modules.get("default") if isinstance(modules, dict) else None
    if not isinstance(default, dict) or len(modules) > 1 or content.get("models") or content.get("slices"):
        listed = ", ".join(map(str, modules)) if isinstance(modules, dict) else repr(modules)
        reason = "mergekit merges each module of a model of several parts by its own settings"
        raise InputError(f"modules: {listed}: {reason}; only one module, named default, is a merge of whole models")
    return default, _parameters(default.get("parameters"), "modules.default.parameters")


def reference_of(value: Any, place: str) -> Reference:
    """Parse mergekit's notation of a model: `model@revision+adapter`, or the same as a map.

    `override_architecture` only chooses mergekit's list of names; here names come from the files.
    """
    if isinstance(value, dict) and set(value) <= {"model", "lora", "override_architecture"} and "model" in value:
        parts = [_path_text(value[key], place) for key in ("model", "lora") if value.get(key)]
        value = "+".join(parts)
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{place}: expected a model as mergekit names it, model@revision+adapter, got {value!r}")
    return Reference(match["model"], match["revision"], match["adapter"], match["of_adapter"])


def _path_text(value: Any, place: str) -> str:
    if isinstance(value, dict) and set(value) <= {"path", "revision"} and isinstance(value.get("path"), str):
        return f"{value['path']}@{value['revision']}" if value.get("revision") else str(value["path"])
    if isinstance(value, str):
        return value
    raise InputError(f"{place}: expected a path or a name on a hub, got {value!r}")


def _parameters(value: Any, place: str) -> Parameters:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a map of parameters, got {value!r}")
    return value


def _each_model(listed: Any, place: str) -> dict[Reference, Parameters]:
    """Read models with their parameters; refuse one that is listed twice."""
    by_model: dict[Reference, Parameters] = {}
    for number, listed_model in enumerate(_as_list(listed)):
        where = f"{place}[{number}]"
        if not isinstance(listed_model, dict) or "model" not in listed_model:
            raise InputError(f"{where}: expected a map with model, got {listed_model!r}")
        reference = reference_of(listed_model["model"], f"{where}.model")
        if reference in by_model:
            raise InputError(f"{where}: {reference} is there twice; give it the sum of the weights")
        by_model[reference] = _parameters(listed_model.get("parameters"), f"{where}.parameters")
    return by_model


def _slices(listed: Any, base: Reference | None) -> list[Slice]:
    """Read slices that together have all layers of the same models, in place; refuse others."""
    if not isinstance(listed, list) or not all(isinstance(listed_slice, dict) for listed_slice in listed):
        raise InputError(f"slices: expected a list of maps with sources, got {listed!r}")
    slices_read = list[Slice]()
    for number, listed_slice in enumerate(listed):
        place, sources = f"slices[{number}]", _as_list(listed_slice.get("sources"))
        given = listed_slice.get("base_model")
        if given and reference_of(given, f"{place}.base_model") != base:
            reason = "a merge of whole models has one base; name it as base_model"
            raise InputError(f"{place}.base_model: {given}: {reason}")
        models = _each_model(sources, f"{place}.sources")
        if slices_read and models.keys() != slices_read[0].models.keys():
            theirs, ours = (", ".join(map(str, part)) for part in (slices_read[0].models, models))
            reason = f"it merges {ours}, and slices[0] {theirs}: {STACKED}"
            raise InputError(f"{place}: {reason}")
        first = 0 if not slices_read else (slices_read[-1].layers or (0, 0))[1]
        layers = _range_of(sources, first, f"{place}.sources")
        slices_read.append(Slice(models, _parameters(listed_slice.get("parameters"), f"{place}.parameters"), layers))
    depth = (slices_read[-1].layers or (0, 0))[1]
    for reference in slices_read[0].models:
        own = layers_of(reference)
        if own not in (None, depth):
            raise InputError(f"slices: they end at layer {depth} of {reference}, which has {own} layers: {STACKED}")
    return slices_read


def layers_of(reference: Reference) -> int | None:
    """Return a local model's number of layers from its config.json; None if it has no such number."""
    config = read_config(Path(reference.model) / MODEL_CONFIG) or {}
    known = configured(config)  # has this number under one name, which is `n_layer` in GPT-2's file
    own = config.get(LAYERS) if known is None else getattr(known.get_text_config(), LAYERS, None)
    return own if isinstance(own, int) else None


def _range_of(sources: Any, first: int, place: str) -> tuple[int, int]:
    """Return the layers of a slice, which must be the same for each model and start at `first`."""
    ranges = [pair.get("layer_range") for pair in sources]
    for number, pair in enumerate(ranges):
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)):
            raise InputError(f"{place}[{number}].layer_range: expected two whole numbers, got {pair!r}")
        if pair[0] != first or pair != ranges[0] or pair[1] <= first:
            reason = f"layer_range {pair} where its layers go on at {first}"
            raise InputError(f"{place}[{number}]: {reason}: {STACKED}")
    if not ranges:
        raise InputError(f"{place}: no models; name them with their layer_range")
    return first, int(ranges[0][1])
