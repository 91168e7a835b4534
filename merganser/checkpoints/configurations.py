"""Compare a task's configuration with the base's: equal shapes do not mean equal computations.

A merge is built by the base's configuration. Settings by which the task's model computes differently are refused; other
differences are reported with both values. Class names are compared too, since heads are merged row by row.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from math import isclose
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.kinds import EMBEDDINGS, HEADS, NORMS, ParameterRules, is_head, is_merged, without
from merganser.checkpoints.known_models import configured
from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError, some

Labels = Mapping[str, Sequence[str]]  # by the part of a model that they are of, '' for the whole

# In the order in which they are taken: a list, or a mapping of numbers to names; then the other way round.
BY_NUMBER = (
    *("id2label", "label_names", "labels", "label_list", "class_names", "class_labels", "classes", "categories"),
    *("names", "idx_to_class", "idx2class", "id_to_class", "id2class", "index_to_label", "id_to_label"),
)
BY_NAME = ("label2id", "class_to_idx", "class2idx", "class_to_id", "class2id", "label_to_index", "label_to_id")
DESCRIPTIONS = "label_descriptions"  # by name, of timm
WHOLE = "pretrained_cfg"  # what timm keeps of the whole model
CLASSIFIER = "classifier"  # in it: the module, or the modules, that the classes are of
ALIKE = re.compile(r"(.+\.)?(heads?|head_\w+|\w+_head|fc|classif\w*|last_linear|logits|output_layer)(\..+)?")
NUMBER = re.compile(r"\d{1,9}")  # of a class
DIGITS = re.compile(r"(.+\.)?\d+(\..+)?")  # a part of a name: of a block among others


def class_labels(folder: Path) -> dict[str, list[str]] | None:
    """Read a model's class names in order, by part; None if they are only numbered."""
    labels = dict(_labels_in(read_config(folder / CONFIG) or {}, ""))
    return labels or None


def _labels_in(config: Mapping[str, Any], place: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the class names of a configuration and of its parts."""
    inner = {key: value for key, value in config.items() if isinstance(value, dict)}
    whole = {**inner.get(WHOLE, {}), **config}
    if (named := _named(whole)) is not None:
        yield place, named
    for key, value in inner.items():
        if key in (*BY_NUMBER, *BY_NAME):
            for head, own in value.items():  # a mapping for each of several heads
                if isinstance(own, dict) and (named := _named({key: own})) is not None:
                    yield f"{place}{head}.", named
        elif key != WHOLE:
            yield from _labels_in(value, f"{place}{key}.")


def _named(config: Mapping[str, Any]) -> list[str] | None:
    """Return the class names at the top level of a configuration."""
    for key in BY_NUMBER:
        if (names := _in_order(config.get(key))) is not None:
            return _described(names, config.get(DESCRIPTIONS))
    for key in BY_NAME:
        numbers = config.get(key)
        if isinstance(numbers, dict) and all(type(number) is int for number in numbers.values()):
            return _in_order({str(number): name for name, number in numbers.items()})
    said = config.get(DESCRIPTIONS)
    if isinstance(said, dict):
        numbered = all(NUMBER.fullmatch(str(key)) for key in said)
        return _in_order(said if numbered else list(said))
    return _in_order(said)


def _in_order(named: Any) -> list[str] | None:
    """Return class names in the order of their numbers; None for anything else, and for names that are only numbers."""
    if isinstance(named, dict) and all(NUMBER.fullmatch(str(number)) for number in named):
        named = [name for _, name in sorted(named.items(), key=lambda item: int(item[0]))]
    if not isinstance(named, list) or not named or not all(isinstance(name, str | int) for name in named):
        return None
    numbered = all(str(name) == f"LABEL_{number}" for number, name in enumerate(named))
    return None if numbered else [str(name) for name in named]


def _described(names: list[str], said: Any) -> list[str]:
    """Return descriptions instead of names that are only numbers, if each has one."""
    if isinstance(said, dict) and all(NUMBER.fullmatch(name) and isinstance(said.get(name), str) for name in names):
        return [said[name] for name in names]
    return names


def check_head_labels(
    who: str,
    ours: Labels,
    theirs: Labels,
    task: str,
    folder: Path,
    opened: tuple[Checkpoint, Any],
    rules: ParameterRules,
) -> None:
    """Refuse merged heads whose rows stand for different classes.

    `folder`: the model's; `opened`: the base, and the model, an adapter or a checkpoint.
    """
    base, model = opened
    if not isinstance(model, Checkpoint):
        return
    named = _modules_named(read_config(folder / CONFIG) or {})
    for part in (part for part in ours if ours[part] != theirs.get(part, ours[part])):
        heads = [
            name
            for name in base.names
            if name in model
            and is_merged(name, base.spec(name).dtype, rules)
            and base.spec(name).shape[:1] == model.spec(name).shape[:1] == (len(theirs[part]),)
            and _is_head(name, len(base.spec(name).shape), named)
        ]
        if heads:
            pairs = enumerate(zip_longest(ours[part], theirs[part]))
            number, (first, own) = next(each for each in pairs if each[1][0] != each[1][1])
            raise InputError(
                f"{task}: row {number} of {heads[0]} is the class {own!r}, that of {who} {first!r}: no "
                f"merge of them means anything; {without(heads, base.names, rules)}"
            )


def _modules_named(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classifier's modules in timm's configuration."""
    whole = config.get(WHOLE)
    said = {**(whole if isinstance(whole, dict) else {}), **config}.get(CLASSIFIER)
    return tuple(str(name) for name in (said if isinstance(said, list) else [said] if said else []))


def _is_head(name: str, dimensions: int, modules: Sequence[str]) -> bool:
    """Tell whether a parameter with a row per class is a head's, by its name or because it is in no block."""
    if is_head(name, HEADS) or ALIKE.fullmatch(name) or name.startswith(tuple(f"{module}." for module in modules)):
        return True
    return dimensions > 1 and not DIGITS.fullmatch(name) and not is_head(name.lower(), (*NORMS, *EMBEDDINGS))


OPEN_CLIP = "open_clip_config.json"
DEFAULTS = {"quick_gelu": False, "vision_cfg.head_width": 64, "text_cfg.heads": 8}  # open_clip's, of what decides
TYPE = "model_type"
FLOAT32_ROUNDING = 2**-23  # of a number, relative to it
SHOWN = 5
# The last part of a key. Parameters mean something else under another value of these: heads, positions, activations.
DECIDING = re.compile(
    r"model_type|(\w+_)?heads(_\w+)?|n_head|(\w+_)?head_dim|dim_head|head_width|d_kv|multi_query|new_decoder_architecture"
    r"|\w*rope\w*|\w*rotary\w*|mrope_section|factor|(low|high)_freq_factor|original_max_position_embeddings"
    r"|alibi|positions?_embeddings?_type|pos_att_type|relative_attention\w*"
    r"|(\w+_)?(act|act_fn|act_layer|activation|activation_function)|feed_forward_proj|is_gated_act|quick_gelu"
    r"|norm_first|do_layer_norm_before|normalize_before|parallel_attn|use_parallel_residual"
)
# Settings of generation, which older configurations keep.
OF_GENERATION = (
    r"max_length|min_length|max_new_tokens|min_new_tokens|do_sample|early_stopping|num_beams|num_beam_groups"
    r"|diversity_penalty|temperature|top_k|top_p|typical_p|repetition_penalty|length_penalty|no_repeat_ngram_size"
    r"|encoder_no_repeat_ngram_size|bad_words_ids|num_return_sequences|remove_invalid_values|suppress_tokens"
    r"|begin_suppress_tokens|exponential_decay_length_penalty|forced_(bos|eos)_token_id|sep_token_id|chunk_size_feed_forward"
)
# What no forward pass reads: where a model is from, how it was trained, what it writes, and what others compare.
HARMLESS = re.compile(
    r"_(name_or_path|commit_hash|from_\w+|diffusers_version|attn_implementation\w*)|transformers_(version|weights)|architectures"
    r"|(torch_)?dtype|auto_map|use_cache|cache_implementation|return_dict"
    r"|output_(attentions|hidden_states|scores|past|logits|router_logits)|return_dict_in_generate|torchscript|use_bfloat16"
    r"|(\w+_)?(dropout|pdrop|layerdrop|drop_path_rate|drop_rate|dropout_rate|dropout_prob|drop)|dropout_\w+"
    r"|(\w+_)?initializer(_\w+)?|(\w+_)?init_(std|range|factor|scale)|initial_scale|logit_scale_init_value|embd_pdrop"
    r"|gradient_checkpointing(_\w+)?|finetuning_task|task_specific_params|problem_type|(router_)?aux_loss_coef"
    r"|router_(z|aux)_loss_coef|router_jitter_noise|attn_implementation|unsloth_\w+|pretraining_tp"
    r"|id2label|label2id|label_names|label_descriptions|num_labels|num_classes|quantization_config|tie_word_embeddings|tie_encoder_decoder|vocab_size"
    rf"|{OF_GENERATION}"
)


def check_configuration(base: Path, model: Path, task: str) -> list[str]:
    """Compare a model's configuration with the base's; return notes for the user. Both are folders.

    It compares open_clip's configurations, and `config.json` in the terms of the installed transformers, so that
    versions of one configuration are equal. Folders without one are not compared. Raises InputError, with both
    values, for another architecture: model type, heads, rotary embeddings, activation.
    """
    differences = differences_of(base, model)
    # a setting that only one of the two has may be the other's default
    deciding = {key: pair for key, pair in differences.items() if DECIDING.fullmatch(_name(key)) and None not in pair}
    if deciding:
        raise InputError(
            f"{task}: its {CONFIG} has {list_settings(deciding)}: with equal shapes it is another architecture, and "
            "its parameters mean something else there; merge models that were fine-tuned from one base"
        )
    return [f"{task}: its {CONFIG} has {list_settings(differences)}; the merge has the base's"] if differences else []


def differences_of(base: Path, model: Path) -> dict[str, tuple[Any, Any]]:
    """List settings of two folders that differ and may change a forward pass: the base's value, the model's."""
    differences: dict[str, tuple[Any, Any]] = {}
    ours, theirs = (_of_open_clip(folder) for folder in (base, model))
    if ours is not None and theirs is not None:
        differences |= differing_settings(ours, theirs)
    ours, theirs = (read_config(folder / CONFIG) for folder in (base, model))
    if ours is not None and theirs is not None:
        differences |= differing_settings(*of_one_part(*in_todays_words(ours, theirs)))
    return differences


def in_todays_words(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two different configurations in the terms of the installed transformers, if it knows both."""
    if differing_settings(*of_one_part(ours, theirs)):
        one, other = configured(ours), configured(theirs)
        if one is not None and other is not None:
            return one.to_dict(), other.to_dict()
    return ours, theirs


def _of_open_clip(folder: Path) -> dict[str, Any] | None:
    """Return the values from which open_clip builds a model, by their places; most files leave out the defaults."""
    content = read_config(folder / OPEN_CLIP)
    inner = None if content is None else content.get("model_cfg")
    return {**DEFAULTS, **dict(_values(inner))} if isinstance(inner, dict) else None


def of_one_part(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what to compare: if one model is a part of the other, such as CLIP's image tower, that part's."""
    if ours.get(TYPE) == theirs.get(TYPE):
        return ours, theirs
    return _part(ours, theirs.get(TYPE)), _part(theirs, ours.get(TYPE))


def _part(config: dict[str, Any], wanted: Any) -> dict[str, Any]:
    key = key_of_part(config, wanted)
    return config if key is None else {**config[key], TYPE: wanted}


def key_of_part(config: Mapping[str, Any], wanted: Any) -> str | None:
    """Find a part's configuration by its model type; older configurations lack that, and use its key."""
    for key, inner in config.items():
        if isinstance(inner, dict):
            stands_for = f"{config.get(TYPE)}_{key.removesuffix('_config')}_model"
            if inner.get(TYPE, stands_for) == wanted:
                return key
    return None


def differing_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """List settings of two configurations that differ and may change a forward pass, with both values."""
    one, other = (dict(_values(config)) for config in (ours, theirs))
    keys = [key for key in {**one, **other} if not HARMLESS.fullmatch(_name(key))]
    pairs = {key: (one.get(key), other.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if not _are_equal(*pair)}


def _are_equal(ours: Any, theirs: Any) -> bool:
    """Compare two values; of real numbers one may be the other in float32, as GGUF files have them."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return isclose(ours, theirs, rel_tol=FLOAT32_ROUNDING)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_are_equal, ours, theirs))
    return bool(ours == theirs)


def _values(config: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its place; nested settings have dotted places."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            if not HARMLESS.fullmatch(str(key)):
                yield from _values(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def list_settings(differences: Mapping[str, tuple[Any, Any]], who: str = "the base") -> str:
    """List settings with both values: the model's, then the base's or another model's."""
    return some([f"{key} {theirs!r} ({who} {ours!r})" for key, (ours, theirs) in differences.items()], SHOWN)
