"""Read a configuration of mergekit; refuse by name what no merge of whole models by one method can say."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG as MODEL_CONFIG
from merganser.checkpoints.architecture import read_config
from merganser.errors import InputError, did_you_mean
from merganser.limits import read_yaml

KEYS = (
    *("merge_method", "models", "slices", "modules", "base_model", "parameters", "dtype", "out_dtype"),
    *("tokenizer", "tokenizer_source", "chat_template"),
)
REFUSED_KEYS = {
    "modules": "names the parts of a model one by one; write one configuration with models for each",
    "experts": "builds a mixture of experts (mergekit-moe), which is another architecture; merge dense models",
}
REFERENCE = re.compile(r"(?P<model>[^+@]+)(@(?P<revision>[^+@]+))?(\+(?P<adapter>[^+@]+)(@(?P<of_adapter>[^+@]+))?)?")
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Reference:
    """A model as mergekit names it: a path or a name on a hub, and an adapter of it."""

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
class Configuration:
    """A merge of whole models as mergekit's configuration says it."""

    method: str
    models: Mapping[Reference, Parameters]  # each with its own parameters
    base: Reference | None
    parameters: tuple[Parameters, ...]  # of all models, those that count first
    rest: Mapping[str, Any]  # dtype, out_dtype, tokenizer, tokenizer_source, chat_template
    notes: list[str] = field(default_factory=list)


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
    notes = []
    for key in content.keys() - set(KEYS):
        if near := did_you_mean(str(key), KEYS):
            raise InputError(f"{path}: {key}: mergekit has no such key{near}")
        notes.append(f"{key}: left out; mergekit does not read it")
    if bool(content.get("models")) == bool(content.get("slices")):
        raise InputError(f"{path}: expected either models or slices")
    own: Parameters
    base = reference_of(content["base_model"], "base_model") if content.get("base_model") else None
    shared = _parameters(content.get("parameters"), "parameters")
    if content.get("models"):
        models, own = _each_model(content["models"], "models"), {}
    else:
        models, own = _whole_slice(content["slices"])
    rest = {key: content[key] for key in KEYS[-5:] if content.get(key) is not None}
    return Configuration(str(content["merge_method"]), models, base, (own, shared), rest, notes)


def reference_of(value: Any, place: str) -> Reference:
    """Read how mergekit names a model: `model@revision+adapter`, or the same as a map."""
    if isinstance(value, dict) and set(value) <= {"model", "lora"} and "model" in value:
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
    """Read models with their parameters; refuse one that is named twice."""
    found: dict[Reference, Parameters] = {}
    for number, each in enumerate(listed if isinstance(listed, list) else [listed]):
        where = f"{place}[{number}]"
        if not isinstance(each, dict) or "model" not in each:
            raise InputError(f"{where}: expected a map with model, got {each!r}")
        reference = reference_of(each["model"], f"{where}.model")
        if reference in found:
            raise InputError(f"{where}: {reference} is there twice; give it the sum of the weights")
        found[reference] = _parameters(each.get("parameters"), f"{where}.parameters")
    return found


def _whole_slice(slices: Any) -> tuple[dict[Reference, Parameters], Parameters]:
    """Read the one slice that holds all layers of every model; refuse what puts layers together to another depth."""
    reason = "stacks layers into another model; only one slice of all layers of every model is a merge"
    if not isinstance(slices, list) or len(slices) != 1 or not isinstance(slices[0], dict):
        raise InputError(f"slices: {len(slices) if isinstance(slices, list) else 'this'} of them: {reason}")
    sources = slices[0].get("sources") or []
    models = _each_model(sources, "slices[0].sources")
    ranges = {tuple(each.get("layer_range") or ()) for each in sources}
    for reference in models:
        config = read_config(Path(reference.model) / MODEL_CONFIG) or {}
        depth = config.get("num_hidden_layers")
        if len(ranges) > 1 or any(len(each) != 2 or each[0] != 0 or depth not in (None, each[1]) for each in ranges):
            shown = ", ".join(str(list(each)) for each in sorted(ranges))
            raise InputError(f"slices: layer_range {shown} of {reference}, which has {depth} layers: {reason}")
    return models, _parameters(slices[0].get("parameters"), "slices[0].parameters")
