"""What `adapter_config.json` says of an adapter's tensors."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from merganser.checkpoints.reading import ADAPTER_CONFIG
from merganser.errors import InputError
from merganser.limits import parse_json, read_small

REMEDY = "merge it into its base with PEFT's merge_and_unload and give the merged checkpoint"
# features by which an adapter is more than a low-rank update of the weights it is loaded onto
BEYOND = (
    *("use_dora", "use_qalora", "use_bdlora", "kasa_config", "monteclora_config", "arrow_config"),
    *("alora_invocation_tokens", "layer_replication", "trainable_token_indices", "target_parameters"),
)
# Up to this version PEFT adds its update of the out_proj of nn.MultiheadAttention twice, in training, inference and
# merge_and_unload alike (huggingface/peft#3774): the model that was trained has it twice.
LAST_TO_DOUBLE = (0, 21, 2)
STARTS = (True, False, "gaussian", "eva", "orthogonal")  # others move the base's own weights, or come with a variant

# What lets a pattern take for ever to match: groups that repeat, look around or back, more than three repetitions.
INTRICATE = re.compile(r"\)[*+?{]|\(\?|\\[0-9]|([*+?{].*){4}", re.DOTALL)


def _tame(pattern: str) -> str:
    """Refuse an invalid pattern of modules' names, and one that could take for ever to match."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a pattern: {error}") from error
    if INTRICATE.search(pattern):
        raise ValueError("too intricate a pattern")
    return pattern


Pattern = Annotated[str, Field(max_length=200), AfterValidator(_tame)]


class Settings(BaseModel):
    """The rank and the scale of each module's update."""

    r: Annotated[int, Field(gt=0)]
    lora_alpha: Annotated[float, Field(allow_inf_nan=False)]
    rank_pattern: dict[Pattern, Annotated[int, Field(gt=0)]] | None = None
    alpha_pattern: dict[Pattern, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    peft_version: Annotated[str, Field(max_length=50)] = "0"  # older versions do not say

    def rank(self, module: str) -> int:
        """Return the rank of a module's update."""
        return int(_matching(self.rank_pattern, _given(module), self.r))

    def scale(self, module: str) -> float:
        """Return the factor on a module's update: alpha over its rank, or over the rank's root (rsLoRA)."""
        rank, alpha = self.rank(module), _matching(self.alpha_pattern, _given(module), self.lora_alpha)
        doubled = module != _given(module) and _version(self.peft_version) <= LAST_TO_DOUBLE
        return (2 if doubled else 1) * alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_settings(path: Path) -> Settings:
    """Read `adapter_config.json`; raise InputError when it announces more than low-rank updates, or is malformed."""
    try:
        config = parse_json(read_small(path))
        kind = config["peft_type"]
        settings = Settings.model_validate(config) if kind == "LORA" else None
    except InputError:
        raise
    except (ValidationError, ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path}: not the configuration of a PEFT adapter ({_short(error)}); save it again") from error
    if settings is None:
        raise InputError(f"{path}: an adapter of type {kind}, and only LORA can be read; {REMEDY}")
    beyond = [feature for feature in BEYOND if config.get(feature)]
    if beyond:
        raise InputError(f"{path}: {beyond[0]} is more than a low-rank update of the weights; {REMEDY}")
    start = config.get("init_lora_weights", True)
    if start not in STARTS:
        raise InputError(
            f"{path}: init_lora_weights {start!r} changes the base as well; save it with "
            "path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
        )
    return settings


def base_of(folder: Path) -> str | None:
    """Read the name of the model that an adapter was trained on; None where it does not say."""
    named = parse_json(read_small(folder / ADAPTER_CONFIG)).get("base_model_name_or_path")
    return named if isinstance(named, str) and named else None


def _given(module: str) -> str:
    """Name the module that the settings are for: PEFT wraps nn.MultiheadAttention as one, with its out_proj."""
    return module.split(".base_layer.")[0]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _matching(patterns: Mapping[str, float] | None, module: str, otherwise: float) -> float:
    """Return the value of the first pattern that a module's name ends with, as PEFT looks it up."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        mistake = error.errors()[0]
        return f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
