"""The installed transformers' knowledge of a model, by its `config.json`. A model's own code never runs.

The tables say which parameters are one tensor under two names, by `_tied_weights_keys` of its model classes, without
the prefix of a model in a larger one. `tests/checkpoints/test_ties.py` compares them with the installed classes.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Ties = Mapping[str, tuple[str, ...]]  # a second name, and the first ones that it may stand for


def _words_of(*models: str) -> tuple[str, ...]:
    return tuple(f"{model}.embeddings.word_embeddings.weight" for model in models)


# whatever a configuration says of the output embedding
ALWAYS: Ties = {
    "encoder.embed_tokens.weight": ("shared.weight",),
    "decoder.embed_tokens.weight": ("shared.weight",),
}
BY_CONFIG: Ties = {
    "lm_head.weight": (
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "shared.weight",
        "model.decoder.embed_tokens.weight",
        "model.shared.weight",
        "transformer.wte.weight",
        "model.text_model.embed_tokens.weight",
        "backbone.embeddings.weight",
        "transformer.word_embeddings.weight",
        "prophetnet.word_embeddings.weight",
        "transformer.w.weight",
        "model.language_model.shared.weight",
        "funnel.embeddings.word_embeddings.weight",
        "gpt_neox.embed_in.weight",
        "model.embed_tokens.embed_tokens.weight",
        "led.shared.weight",
        "model.text_model.embeddings.tok_embeddings.weight",
        "model.embed_tokens.word_embeddings.weight",
        "embed_tokens.weight",
        "wte.weight",
        "word_embeddings.weight",
    ),
    "encoder.embed_tokens.weight": ("decoder.embed_tokens.weight",),
    "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    "decoder.embed_tokens.weight": ("encoder.text_model.embed_tokens.weight",),
    "lm_head.decoder.bias": ("lm_head.bias",),
    "lm_head.decoder.weight": _words_of(
        "roberta", "data2vec_text", "roberta_prelayernorm", "bert", "esm", "gte", "longformer", "mpnet", "ibert"
    ),
    "cls.predictions.decoder.weight": _words_of(
        *(
            "bert",
            "ernie",
            "roc_bert",
            "deberta",
            "fnet",
            "mobilebert",
            "roformer",
            "visual_bert",
            "layoutlm",
            "lxmert",
        ),
        *("mra", "nomic_bert", "nystromformer", "transformer", "tapas", "yoso"),
    ),
    "text_decoder.embed_tokens.weight": ("shared.weight",),
    "proj_out.weight": ("model.decoder.embed_tokens.weight",),
    "text_encoder.embed_tokens.weight": ("shared.weight",),
    "encoder.embed_patches.proj.weight": ("patch_embed.proj.weight",),
    "encoder.embed_patches.proj.bias": ("patch_embed.proj.bias",),
    "predictions.decoder.weight": _words_of("albert"),
    "predictions.decoder.bias": ("predictions.bias",),
    "text_decoder.cls.predictions.decoder.bias": ("text_decoder.cls.predictions.bias",),
    "text_decoder.cls.predictions.decoder.weight": ("text_decoder.bert.embeddings.word_embeddings.weight",),
    "generator_lm_head.weight": _words_of("electra", "convbert"),
    "pred_layer.proj.weight": ("transformer.embeddings.weight",),
    "decoder.weight": ("model.embeddings.tok_embeddings.weight",),
    "prompt_encoder.shared_embedding.positional_embedding": ("shared_image_embedding.positional_embedding",),
    "encoder.relative_bias.biases.0.relative_attention_bias.weight": (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
    "output_projection.weight": (
        "biogpt.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    ),
    "model.local_encoder.embed_tokens.weight": ("lm_head.weight",),
    "mlm_score.decoder.weight": (
        "bridgetower.text_model.embeddings.word_embeddings.weight",
        "vilt.embeddings.text_embeddings.word_embeddings.weight",
    ),
    "backbone_model.embed_tokens.embed_audio_tokens.weight": ("depth_decoder.model.embed_tokens.weight",),
    "encoder.language_model.norm.weight": ("decoder.norm.weight",),
    "encoder.language_model.embed_tokens.weight": ("decoder.embed_tokens.weight",),
    "vocab_projector.weight": _words_of("distilbert"),
    "decoder.output_projection.weight": ("decoder.embed_tokens.weight",),
    "mmm_text_head.bias": ("mmm_text_head.decoder.bias",),
    "mim_head.bias": ("mim_head.decoder.bias",),
    "mlm_head.bias": ("mlm_head.decoder.bias",),
    "mmm_image_head.bias": ("mmm_image_head.decoder.bias",),
    "embed_out.weight": (
        "gpt_neox_japanese.embed_in.weight",
        "gpt_neox.embed_in.weight",
    ),
    "output.weight": _words_of("git"),
    "ctc_head.weight": ("encoder.out.weight",),
    "ctc_head.bias": ("encoder.out.bias",),
    "text_model.lm_head.weight": ("text_model.model.embed_tokens.weight",),
    "entity_predictions.decoder.weight": ("luke.entity_embeddings.entity_embeddings.weight",),
    "unembedding_projection.weight": ("model.embed_tokens.embedding_projection.weight",),
    "transformer.tokens_embed.weight": ("lm_head.weight",),
    "prophetnet.decoder.word_embeddings.weight": ("prophetnet.word_embeddings.weight",),
    "encoder.word_embeddings.weight": ("word_embeddings.weight",),
    "decoder.word_embeddings.weight": ("word_embeddings.weight",),
    "codec_head": ("model.codec_embedding.weight",),
    "head.weight": ("rwkv.embeddings.weight",),
    "text_decoder_postnet.lm_head.weight": ("speecht5.decoder.prenet.embed_tokens.weight",),
    "lm_head.out_proj.weight": (
        "model.encoder.text_model.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    ),
    "decoder.embed_tokens.eoi_embedding": ("encoder.text_model.embed_tokens.eoi_embedding",),
    "decoder.relative_bias.biases.0.relative_attention_bias.weight": (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
    "head.decoder.weight": ("model.embed_tokens.weight",),
    "lm_loss.weight": ("transformer.word_embedding.weight",),
}


def configured(config: Mapping[str, Any]) -> Any | None:
    """Build the configuration's transformers class; None if it is not installed, or does not know the model."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    try:
        return CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    except Exception:  # unknown to this transformers, or refused by it
        return None


def todays_names(config: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return the name of each tensor of a file after the installed transformers loads it; {} if it cannot.

    It uses transformers' tables of earlier names. The model is built without values.
    """
    model = without_values(config)
    if model is None:
        return {}
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [change for change in get_model_conversion_mapping(model) if isinstance(change, WeightRenaming)]
    loaded = model.state_dict()
    by_file = {
        name: rename_source_key(name, renamings, [], model.base_model_prefix, loaded)[0] for name in sorted(names)
    }
    return by_file if len(set(by_file.values())) == len(by_file) else {}


@dataclass(frozen=True)
class ExpertConversion:
    """How the installed transformers builds a stack of experts from a file's tensors.

    `parts`: the names of the experts' tensors, in their order, by the converter's patterns.
    """

    model: Any
    converter: Any
    parts: Mapping[str, Sequence[str]]

    @property
    def count(self) -> int:
        """Return the number of experts."""
        return len(next(iter(self.parts.values())))

    def stack(self, name: str, experts: Mapping[str, Sequence[Tensor]]) -> Tensor:
        """Combine experts' tensors, by the converter's patterns, into the stack with a name in the loaded model."""
        converter = deepcopy(self.converter)
        for pattern, tensors in experts.items():
            for tensor in tensors:
                converter.add_tensor(name, name, pattern, tensor)
        (made,) = converter.convert(name, model=self.model, config=self.model.config).values()
        return made if isinstance(made, Tensor) else made[0]

    def apart(self, name: str, expert: Tensor) -> dict[str, Tensor]:
        """Split one expert of a stack (1, M, N) into its tensors, by the converter's patterns."""
        reverse = deepcopy(self.converter).reverse_transform()
        today, pattern = reverse.rename_source_key(name)
        reverse.add_tensor(today, name, pattern, expert)
        made = reverse.convert(today, model=self.model, config=self.model.config)
        ends = {pattern: pattern.replace("*", "0") for pattern in self.parts}
        return {pattern: next(made[key] for key in made if end in key) for pattern, end in ends.items()}


def stacks_of(config: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, ExpertConversion], dict[str, str]]:
    """Return the stacks of experts that the installed transformers builds from a file's tensors, by name in the file.

    Also returns the file's names of all other loaded parameters. Both are empty if transformers does not know the
    model.
    """
    model = without_values(config)
    if model is None:
        return {}, {}
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    loaded, parts, others = model.state_dict(), dict[str, dict[str, list[str]]](), dict[str, str]()
    for name in sorted(names, key=dot_natural_key):
        today, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, loaded)
        if pattern is None:
            others[today] = name
        else:
            parts.setdefault(today, {}).setdefault(pattern, []).append(name)
    conversions = {name: ExpertConversion(model, by_pattern[next(iter(own))], own) for name, own in parts.items()}
    return {name: each for name, each in conversions.items() if _is_by_expert(each)}, others


def _is_by_expert(conversion: ExpertConversion) -> bool:
    """Tell whether a conversion stacks all experts, each changed independently of the others."""
    from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

    first, *others = conversion.converter.operations
    if not isinstance(first, MergeModulelist) or first.dim != 0:
        return False
    whole = set(conversion.converter.source_patterns) == conversion.parts.keys()
    within = [
        (isinstance(each, Concatenate) and each.dim > 0 and each.num_shards_attribute is None)
        or (isinstance(each, Transpose) and 0 not in (each.dim0, each.dim1) and not each.check_dims)
        for each in others
    ]
    return whole and len(set(map(len, conversion.parts.values()))) == 1 and all(within)


def modules_of(config: Mapping[str, Any]) -> set[str] | None:
    """Name the modules of the model that the installed transformers builds; None if it builds none."""
    model = without_values(config)
    return None if model is None else {name for name, _ in model.named_modules()}


def without_values(config: Mapping[str, Any]) -> Any | None:
    """Build a model of the class in a configuration on the meta device; None if there is no such class."""
    made, classes = configured(config), config.get("architectures")
    if made is None or not isinstance(classes, list) or not classes:
        return None
    import torch
    import transformers

    from merganser.checkpoints.bounded import bounded

    kind = getattr(transformers, str(classes[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return None
    try:
        with torch.device("meta"), bounded():
            return kind(made)
    except Exception:  # settings that make no model, or one of more modules than any has
        return None
