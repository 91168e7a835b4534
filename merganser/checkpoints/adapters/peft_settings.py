"""PEFT's kinds of adapters: which can be merged, and the configuration of one, read from an untrusted file."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from merganser.checkpoints.adapters.settings import OF_SWIFT, REMEDY, check_pattern
from merganser.errors import InputError, refusing
from merganser.extras import naming_extras

INPUT = "adds virtual tokens to the input and changes no weights"
ROUTED = "computes what it adds from the input"
# kinds of which PEFT makes no weights, and why
UNMERGEABLE: Mapping[str, str] = {
    **dict.fromkeys(("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT"), INPUT),
    "ADAPTION_PROMPT": "adds virtual tokens to each layer's input and changes no weights",
    "CARTRIDGE": "adds a trained cache of keys and values and changes no weights",
    **dict.fromkeys(("POLY", "LILY", "SHADOW"), ROUTED),
    "XLORA": "mixes several adapters by the input; give each of them, by its own folder",
}
UNMERGEABLE_LORA: Mapping[str, str] = {
    "alora_invocation_tokens": "is switched on by tokens in the input",
    "arrow_config": ROUTED,
    "use_qalora": "is of quantised weights alone",
    "layer_replication": "repeats layers, so that one base layer has several updates",
}
JOINT: Mapping[str, str] = {"FROD": "needs the weights of all layers at once to be loaded"}
NOT_MERGED = "so it cannot be merged: leave it out, and load it onto the merged model"
# what only matters to training, to saving, or to finding the base; the modules are those that have tensors
UNUSED = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "peft_version", "peft_type"),
        *("inference_mode", *OF_SWIFT),
    )
)
FOUND_OTHERWISE: Mapping[str, Any] = {
    **dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save")),
    "trainable_token_indices": None,
    "bias": "none",
    "ensure_weight_tying": False,
    "inference_mode": True,
}
IMPORTED = ("megatron_config",)  # makes PEFT import the module that the configuration names
PATTERNS = ("pattern", "feedforward_modules")  # ends of fields whose text PEFT takes for regular expressions
ANY_ORDER = ("VERA", "PVERA", "RANDLORA", "VBLORA")  # what their layers share does not depend on the layers' order


# Kinds that leave biases as they are; of others a bias is taken to change too.
WEIGHTS_ALONE = frozenset(
    (
        *("ADALORA", "BOFT", "C3A", "DEFT", "DELORA", "FOURIERFT", "GRALORA", "HIRA", "HRA", "LOHA", "LOKR", "MISS"),
        *("OFT", "OSF", "PEANUT", "PSOFT", "PVERA", "RANDLORA", "SHIRA", "SUPERTUNING", "TINYLORA", "UNILORA"),
        *("VBLORA", "VERA", "WAVEFT"),
    )
)


@dataclass(frozen=True)
class Wrapping:
    """The parameters that an adapter changes by their own names (`target_parameters`)."""

    names: tuple[str, ...] = ()
    listed: tuple[str, ...] | None = None  # modules that it is put on otherwise; None: not known

    def is_listed(self, module: str) -> bool:
        """Tell whether a module is among the listed ones, if there is a list."""
        return self.listed is not None and any(f".{module}".endswith(f".{each}") for each in self.listed)

    def parameters(self, module: str) -> list[str]:
        """List a module's adapted parameters; a pattern without a module matches in unlisted modules."""
        names_used = []
        for name in self.names:
            of, _, own = name.rpartition(".")
            if f".{module}".endswith(f".{of}") if of else not self.is_listed(module):
                names_used.append(own)
        return names_used


def wrapping_of(path: Path, config: Mapping[str, Any]) -> Wrapping:
    """Read which parameters an adapter changes; raise InputError if the values are no names."""
    names, listed = config.get("target_parameters") or [], config.get("target_modules") or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{path}: target_parameters are no names; save the adapter again")
    bare = [name for name in names if "." not in name]
    if bare and not isinstance(listed, list):
        raise InputError(f"{path}: target_parameters: name the module of {bare[0]} too, as in 'mlp.experts.{bare[0]}'")
    return Wrapping(tuple(names), tuple(map(str, listed)) if isinstance(listed, list) else None)


def _names(path: Path, field: str, value: Any) -> list[str]:
    """Return the names or patterns of a configuration's field; raise InputError for anything else."""
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: {field} is {value!r}, not names of modules; save the adapter again")
    return names


@dataclass(frozen=True)
class PeftKind:
    """One of PEFT's kinds of adapters, with an adapter's configuration."""

    name: str
    tuner: Any
    prefix: str  # of the names of its tensors
    settings: Mapping[str, Any]
    config_class: Any
    wrapping: Wrapping

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the parameters of a module that change; all but the first only if the module has them."""
        if self.name == "BEFT":
            return ("bias",)
        is_weight = self.name in WEIGHTS_ALONE or (self.name == "LORA" and not self.settings.get("lora_bias"))
        return ("weight",) if is_weight else ("weight", "bias")

    @property
    def is_shared(self) -> bool:
        """Tell whether layers share values that PEFT creates once."""
        return bool(getattr(self.tuner, "uses_shared_state", False))

    def config(self, modules: Sequence[str]) -> Any:
        """Create PEFT's configuration for these modules."""
        config = self.config_class(**self.settings)
        for name, value in FOUND_OTHERWISE.items():
            if hasattr(config, name):
                setattr(config, name, value)
        config.target_modules = list(modules)
        return config

    def check_targets(self, path: Path, modules: Collection[str]) -> None:
        """Raise InputError for a module that PEFT would skip; intricate patterns are not checked."""
        targets = self.settings.get("target_modules")
        if not targets or targets == "all-linear" or self.settings.get("ensure_weight_tying"):
            return
        lists = ("target_modules", "exclude_modules", "layers_pattern")
        patterns = [text for name in lists for text in _names(path, name, self.settings.get(name))]
        try:
            for pattern in patterns:
                check_pattern(pattern)
        except ValueError:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = self.config_class(**self.settings)
        with refusing(f"{path}: not the configuration of a {self.name}", "save the adapter again", Exception):
            left = [module for module in sorted(modules) if not self.tuner._check_target_module_exists(config, module)]
        if left:
            reason = f"PEFT leaves out {left[0]}, which its configuration does not target"
            raise InputError(f"{path}: {reason}; save the adapter again")

    def check_order(self, path: Path, known: bool) -> None:
        """Raise InputError if layers share values by their order, and the order is not known."""
        if not known and self.is_shared and self.name not in ANY_ORDER:
            order = (
                "depends on the order of the model's layers, and the base's config.json names no class of transformers"
            )
            raise InputError(f"{path}: an adapter of type {self.name} {order} that has them; {REMEDY}")


def refuse_unmergeable(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise InputError for an adapter of a kind that cannot be merged, or is not supported."""
    kind = str(settings["peft_type"])
    if kind in UNMERGEABLE:
        raise InputError(f"{path}: an adapter of type {kind} {UNMERGEABLE[kind]}, {NOT_MERGED}")
    if kind in JOINT:
        raise InputError(f"{path}: an adapter of type {kind} {JOINT[kind]}; {REMEDY}")
    features = [name for name in UNMERGEABLE_LORA if settings.get(name)]
    if features:
        raise InputError(f"{path}: an adapter with {features[0]} {UNMERGEABLE_LORA[features[0]]}, {NOT_MERGED}")
    imported = [name for name in IMPORTED if settings.get(name)]
    if imported:
        raise InputError(f"{path}: {imported[0]} makes PEFT import code; {REMEDY}")


def peft_kind(path: Path, settings: Mapping[str, Any]) -> PeftKind:
    """Return PEFT's kind of a mergeable adapter; raise InputError if the installed PEFT lacks it."""
    with naming_extras():
        import peft
        from peft import mapping
    tuners, configs, prefixes = (
        {str(getattr(key, "value", key)): value for key, value in each.items()}
        for each in (
            mapping.PEFT_TYPE_TO_TUNER_MAPPING,
            mapping.PEFT_TYPE_TO_CONFIG_MAPPING,
            mapping.PEFT_TYPE_TO_PREFIX_MAPPING,
        )
    )
    name = str(settings["peft_type"])
    newer = f"which PEFT {peft.__version__} does not know; upgrade it (pip install -U peft), or {REMEDY}"
    if name not in tuners:
        raise InputError(f"{path}: an adapter of type {name}, {newer}")
    tuner: Any = tuners[name]
    config: Any = configs[name]
    if not hasattr(tuner, "merge_and_unload"):
        raise InputError(f"{path}: an adapter of type {name} changes no weights, {NOT_MERGED}")
    own = {field.name for field in fields(config) if field.init}
    given = {key: value for key, value in settings.items() if key not in UNUSED}
    unknown = [key for key, value in given.items() if key not in own and value]
    if unknown:
        raise InputError(f"{path}: {unknown[0]}, {newer}")
    known = {key: value for key, value in given.items() if key in own and value is not None}
    for key, value in known.items():
        if key.endswith(PATTERNS):
            _check_patterns(path, key, value)
    kind = PeftKind(name, tuner, str(prefixes.get(name, "")), known, config, wrapping_of(path, settings))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.config([])
    except Exception as error:  # each kind has checks of its own
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path}: not the configuration of a {name} ({said}); save the adapter again") from error
    return kind


def _check_patterns(path: Path, key: str, value: Any) -> None:
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, dict | list) else []
    for text in texts:
        try:
            check_pattern(str(text))
        except ValueError as error:
            raise InputError(f"{path}: {key}: {error}") from error
