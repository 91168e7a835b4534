"""Compare the configuration of a task's model with the base's: equal shapes do not mean equal computations.

A merge is built by the base's configuration. What makes the task's model compute with its parameters in another way is
refused; what else differs is named, with both values.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.known_models import configured
from merganser.errors import InputError, some

OPEN_CLIP = "open_clip_config.json"
TYPE = "model_type"
SHOWN = 5
# The last part of a key. Parameters mean something else under another value of these: heads, positions, activations.
DECIDING = re.compile(
    r"model_type|(\w+_)?heads(_\w+)?|n_head|(\w+_)?head_dim|dim_head|head_width|d_kv|multi_query|new_decoder_architecture"
    r"|\w*rope\w*|\w*rotary\w*|mrope_section|factor|(low|high)_freq_factor|original_max_position_embeddings"
    r"|alibi|positions?_embeddings?_type|pos_att_type|relative_attention\w*"
    r"|(\w+_)?(act|act_fn|activation|activation_function)|feed_forward_proj|is_gated_act|quick_gelu"
    r"|norm_first|do_layer_norm_before|normalize_before|parallel_attn|use_parallel_residual"
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
    # lists and numbers of generation that older configurations keep
    r"|max_length|min_length|max_new_tokens|min_new_tokens|do_sample|early_stopping|num_beams|num_beam_groups"
    r"|diversity_penalty|temperature|top_k|top_p|typical_p|repetition_penalty|length_penalty|no_repeat_ngram_size"
    r"|encoder_no_repeat_ngram_size|bad_words_ids|num_return_sequences|remove_invalid_values|suppress_tokens"
    r"|begin_suppress_tokens|exponential_decay_length_penalty|forced_(bos|eos)_token_id|sep_token_id|chunk_size_feed_forward"
)


def check_configuration(base: Path, model: Path, task: str) -> list[str]:
    """Compare a model's configuration with the base's; return what a user should know. Both: folders.

    Compared are `config.json`, in the words of the transformers that is installed, so that versions of one
    configuration are equal, and open_clip's own. A folder without one is not compared. Raises InputError, with both
    values, where they are other architectures: model type, heads, rotary embeddings, activation.
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
    """List the settings of two folders that differ and that a forward pass may read: the base's value, the model's."""
    found: dict[str, tuple[Any, Any]] = {}
    ours, theirs = (_of_open_clip(folder) for folder in (base, model))
    if ours is not None and theirs is not None:
        found |= differing_settings(ours, theirs)
    ours, theirs = (read_config(folder / CONFIG) for folder in (base, model))
    return (
        found
        if ours is None or theirs is None
        else found | differing_settings(*_of_one_part(*in_todays_words(ours, theirs)))
    )


def in_todays_words(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give two configurations that differ in the words of the transformers that is installed, where it knows both."""
    if differing_settings(*_of_one_part(ours, theirs)):
        one, other = configured(ours), configured(theirs)
        if one is not None and other is not None:
            return one.to_dict(), other.to_dict()
    return ours, theirs


def _of_open_clip(folder: Path) -> dict[str, Any] | None:
    """Return what open_clip builds a model from."""
    content = read_config(folder / OPEN_CLIP)
    inner = None if content is None else content.get("model_cfg")
    return inner if isinstance(inner, dict) else None


def _of_one_part(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what to compare: where one model is a part of the other, such as CLIP's image tower, that part's."""
    if ours.get(TYPE) == theirs.get(TYPE):
        return ours, theirs
    return _part(ours, theirs.get(TYPE)), _part(theirs, ours.get(TYPE))


def _part(config: dict[str, Any], wanted: Any) -> dict[str, Any]:
    key = key_of_part(config, wanted)
    return config if key is None else {**config[key], TYPE: wanted}


def key_of_part(config: Mapping[str, Any], wanted: Any) -> str | None:
    """Find the configuration of a part by its model type; older ones leave that out, and its key says it."""
    for key, inner in config.items():
        if isinstance(inner, dict):
            stands_for = f"{config.get(TYPE)}_{key.removesuffix('_config')}_model"
            if inner.get(TYPE, stands_for) == wanted:
                return key
    return None


def differing_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """List the settings of two configurations that differ and that a forward pass may read, with both values."""
    one, other = (dict(_values(config)) for config in (ours, theirs))
    keys = [key for key in {**one, **other} if not HARMLESS.fullmatch(_name(key))]
    pairs = {key: (one.get(key), other.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _values(config: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Give each setting with its place; a nested configuration's behind a point."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            if not HARMLESS.fullmatch(str(key)):
                yield from _values(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def list_settings(differences: Mapping[str, tuple[Any, Any]], who: str = "the base") -> str:
    """List settings with both values: first the model's, then that of the base, or of who else has it."""
    return some([f"{key} {theirs!r} ({who} {ours!r})" for key, (ours, theirs) in differences.items()], SHOWN)
