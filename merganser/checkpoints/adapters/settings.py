"""The settings in `adapter_config.json` that concern an adapter's tensors."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from merganser.checkpoints.reading import ADAPTER_CONFIG
from merganser.errors import MALFORMED, InputError, refusing
from merganser.limits import parse_json, read_small

REMEDY = "merge it into its base with PEFT's merge_and_unload and give the merged checkpoint"
OF_SWIFT = ("lora_dtype", "lorap_lr_ratio", "lora_lr_ratio", "lorap_emb_lr")  # ms-swift's settings of a training
# what says nothing of how plain low-rank updates add up
PLAIN = frozenset(
    (
        *("r", "lora_alpha", "lora_dropout", "bias", "task_type", "peft_type", "peft_version", "revision"),
        *("base_model_name_or_path", "megatron_core", "qalora_group_size"),
        *OF_SWIFT,
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"),
        *("rank_pattern", "alpha_pattern", "use_rslora", "fan_in_fan_out", "lora_bias", "ensure_weight_tying"),
        *("trainable_token_indices", "target_parameters", "inference_mode", "auto_mapping", "runtime_config"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "init_lora_weights"),
    )
)
# Up to this version PEFT adds its update of the out_proj of nn.MultiheadAttention twice, in training, inference and
# merge_and_unload alike (huggingface/peft#3774): the model that was trained has it twice.
LAST_TO_DOUBLE = (0, 21, 2)
STARTS = (True, False, "gaussian", "eva", "orthogonal")  # others move the base's own weights, or come with a variant

# What lets a pattern take for ever to match: groups that repeat, look around or back, more than three repetitions.
INTRICATE = re.compile(r"\)[*+?{]|\(\?|\\[0-9]|([*+?{].*){4}", re.DOTALL)


def check_pattern(pattern: str) -> str:
    """Refuse an invalid pattern of module names, and one that could take forever to match."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a pattern: {error}") from error
    if INTRICATE.search(pattern):
        raise ValueError("too intricate a pattern")
    return pattern


Pattern = Annotated[str, Field(max_length=200), AfterValidator(check_pattern)]


class Settings(BaseModel):
    """The rank and the scale of each module's update."""

    r: Annotated[int, Field(gt=0)]
    lora_alpha: Annotated[float, Field(allow_inf_nan=False)]
    rank_pattern: dict[Pattern, Annotated[int, Field(gt=0)]] | None = None
    alpha_pattern: dict[Pattern, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    peft_version: Annotated[str, Field(max_length=50)] = "0"  # older versions do not say
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    ensure_weight_tying: bool = False
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    modules_to_save: list[str] | None = None

    def leaves_out(self, module: str) -> str | None:
        """Return the setting by which PEFT skips a module; None if a pattern is too intricate to try."""
        if not self.target_modules or self.target_modules == "all-linear" or self.ensure_weight_tying:
            return None
        given = _given(module)
        try:
            left_by = {
                "target_modules": not _is_named(given, self.target_modules),
                "exclude_modules": _is_named(given, self.exclude_modules or []),
                "layers_to_transform": not self._is_in_layers(given),
                "modules_to_save": any(_is_inside(given, name) for name in self.modules_to_save or []),
            }
        except ValueError:
            return None
        return next((name for name, left in left_by.items() if left), None)

    def _is_in_layers(self, module: str) -> bool:
        """Tell whether a module is in a listed layer; without a list, or for a whole name, any module is."""
        listed, named, pattern = self.layers_to_transform, self.target_modules or [], self.layers_pattern or []
        if listed is None or listed == [] or isinstance(named, str) or module in named:
            return True
        patterns = [pattern] if isinstance(pattern, str) else pattern
        places = [rf"(^|.*?\.){check_pattern(each)}" for each in patterns] or [r".*?\.[^.]*"]
        matches = (re.match(rf"{place}\.(?P<number>\d+)\.", module) for place in places)
        number = next((int(match["number"]) for match in matches if match), None)
        return number in (listed if isinstance(listed, list) else [listed])

    def rank(self, module: str) -> int:
        """Return the rank of a module's update."""
        return int(_matching(self.rank_pattern, _given(module), self.r))

    def scale(self, module: str) -> float:
        """Return the factor on a module's update: alpha over its rank, or over the rank's square root (rsLoRA)."""
        rank, alpha = self.rank(module), _matching(self.alpha_pattern, _given(module), self.lora_alpha)
        doubled = module != _given(module) and _version(self.peft_version) <= LAST_TO_DOUBLE
        return (2 if doubled else 1) * alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_adapter_config(path: Path) -> dict[str, Any]:
    """Read `adapter_config.json`; raise InputError if it is not an adapter's."""
    with refusing(f"{path}: not the configuration of a PEFT adapter", "save it again", (*MALFORMED, OSError)):
        config = parse_json(read_small(path))
        if not isinstance(config.get("peft_type"), str):
            raise ValueError("'peft_type' is missing")
        return {str(key): value for key, value in config.items()}


def is_plain(config: Mapping[str, Any]) -> bool:
    """Tell whether an adapter has plain low-rank updates, which are read without PEFT.

    Additions of later PEFT versions are switched on by a value that is not empty, false or 0.
    """
    if config["peft_type"] != "LORA" or config.get("init_lora_weights", True) not in STARTS:
        return False
    return not any(value for key, value in config.items() if key not in PLAIN)


def read_settings(path: Path, config: Mapping[str, Any]) -> Settings:
    """Return the settings of low-rank updates; raise InputError if they are malformed."""
    try:
        return Settings.model_validate(config)
    except ValidationError as error:
        mistake = error.errors()[0]
        said = f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
        raise InputError(f"{path}: not the configuration of a PEFT adapter ({said}); save it again") from error


def adapter_base(folder: Path) -> str | None:
    """Return the name of an adapter's base model; None if the adapter does not say."""
    named = parse_json(read_small(folder / ADAPTER_CONFIG)).get("base_model_name_or_path")
    return named if isinstance(named, str) and named else None


def _given(module: str) -> str:
    """Return the module that the settings name: PEFT adapts nn.MultiheadAttention as one, with its out_proj."""
    return module.split(".base_layer.")[0]


def _is_named(module: str, names: list[str] | str) -> bool:
    """Tell whether a module matches names as PEFT reads them: the ends of names, or one pattern of the whole name."""
    if isinstance(names, str):
        return re.fullmatch(check_pattern(names), module) is not None
    return any(f".{module}".endswith(f".{name}") for name in names)


def _is_inside(module: str, name: str) -> bool:
    """Tell whether a module is inside one that matches a name or a pattern."""
    return re.match(rf"(^|.*\.){check_pattern(name)}($|\..*)", module) is not None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _matching(patterns: Mapping[str, float] | None, module: str, otherwise: float) -> float:
    """Return the value of the first pattern that the end of a module's name matches, as PEFT looks it up."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise
