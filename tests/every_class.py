"""Tiny models of every class of transformers for language, pictures or both: the class's own configuration, shrunk."""

import re
from functools import cache
from typing import Any

import transformers as tf
from transformers.models.auto import modeling_auto

WIDTH, VOCABULARY, LAYERS = 16, 40, 2
KINDS = {
    "causal": "CAUSAL_LM",
    "encoder": "MASKED_LM",
    "classifier": "SEQUENCE_CLASSIFICATION",
    "seq2seq": "SEQ_TO_SEQ_CAUSAL_LM",
    "vision": "IMAGE_CLASSIFICATION",
    "vision-language": "IMAGE_TEXT_TO_TEXT",
    "two towers": "ZERO_SHOT_IMAGE_CLASSIFICATION",
}
# Whole numbers of a configuration by the ends of their names, and what they become; the first that fits.
SIZES = (
    (r"vocab_size|vocabulary_size|n_vocab|vocab_size_per_layer_input", VOCABULARY),
    (r"mamba_n_heads|mamba_num_heads", 4),
    (r"head_dim|d_head|d_kv|dim_head|attention_head_size|kv_channels|head_size", 8),
    (r"q_lora_rank|kv_lora_rank|lora_rank|(time|mamba_dt)_step_rank|dt_rank", 8),
    (r"(key_value|kv)_heads|n_head_kv|multi_query_group_num|n_groups", 2),
    (r"heads|n_head|num_head", 2),
    (r"layers|n_layer|depth|num_blocks|n_blocks", LAYERS),
    (
        r"intermediate_size|ffn_dim|ffn_hidden_size|hidden_dim|d_ff|n_inner|d_inner|mlp_dim|inner_dim|intermediate_dim",
        32,
    ),
    (
        r"hidden_size|hidden_size_per_layer_input|d_model|n_embd|embed_dim|dim|width|embedding_size|hidden_channels|embedding_dim|d_latents|num_features|stem_channels|neck_channels",
        WIDTH,
    ),
    (r"position_embeddings|n_positions|seq_len|target_positions|source_positions|n_ctx|seq_length|context_length", 32),
    (r"image_size|crop_size|input_size", 16),
    (r"patch_size", 8),
    (r"experts_per_tok|experts_per_token|moe_topk|moe_k|top_k|top_k_experts", 2),
    (r"experts", 4),
    (r"num_latents|num_queries|num_query_tokens|num_proposals", 4),
)
PATTERNS = tuple((re.compile(rf"(.*_)?({pattern})s?"), value) for pattern, value in SIZES)
TOKEN = re.compile(r".*token_(id|index|idx)s?")
# Computed from the sizes where they are not given.
DERIVED = re.compile(
    r"(.*_)?(layer_types|per_layer_config|no_rope_layers|out_features|out_indices|stage_names|block_types?)"
)
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
# What the rules do not come to, by model type.
FURTHER: dict[str, dict[str, Any]] = {
    "bert-generation": {"is_decoder": True},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": ROPE,
    "hunyuan_v1_moe": ROPE,
    "mamba2": {"num_heads": 4},
    "ministral": ROPE,
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
}


LARGEST = 1_000_000  # parameters of a model that counts as tiny
# Classes that are not tried, by the reason.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "asks for a library that is not installed (natten, detectron2)": (
        "DinatForImageClassification",
        "LayoutLMv2ForSequenceClassification",
    ),
    "its layers, heads or towers hang together in ways that no such sizes satisfy": (
        "BitForImageClassification",
        "ChameleonForConditionalGeneration",
        "CohereCompassForCausalLM",
        "CohereCompassForConditionalGeneration",
        "CohereCompassTextForSequenceClassification",
        "Cosmos3EdgeForConditionalGeneration",
        "CvtForImageClassification",
        "DbrxForCausalLM",
        "DeepseekOcr2ForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "Dots1ForCausalLM",
        "Emu3ForConditionalGeneration",
        "Ernie4_5_VLMoeForConditionalGeneration",
        "FalconH1ForCausalLM",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Gemma4AssistantForCausalLM",
        "Gemma4UnifiedAssistantForCausalLM",
        "Granite4VisionForConditionalGeneration",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanDenseV1ForSequenceClassification",
        "HunYuanMoEV1ForCausalLM",
        "HunYuanMoEV1ForSequenceClassification",
        "HunYuanVLForConditionalGeneration",
        "Lfm2MoeForCausalLM",
        "MinistralForCausalLM",
        "MinistralForSequenceClassification",
        "MistralLarge4ForConditionalGeneration",
        "Molmo2ForConditionalGeneration",
        "NeoMMEForMaskedLM",
        "PerceiverForImageClassificationFourier",
        "PerceptionLMForConditionalGeneration",
        "ReformerForMaskedLM",
        "VideoPrismClipModel",
    ),
    "has more than a million parameters at the smallest sizes that these settings give": (
        "AlignModel",
        "BltForCausalLM",
        "CpmAntForCausalLM",
        "DeepseekVLHybridForConditionalGeneration",
        "EfficientNetForImageClassification",
        "FastVlmForConditionalGeneration",
        "GotOcr2ForConditionalGeneration",
        "HGNetV2ForImageClassification",
        "JanusForConditionalGeneration",
        "MobileNetV1ForImageClassification",
        "MobileNetV2ForImageClassification",
        "MobileViTV2ForImageClassification",
        "NemotronH_Omni_Reasoning_V3",
        "PPFormulaNetForConditionalGeneration",
        "PPLCNetForImageClassification",
        "Phi4MultimodalForCausalLM",
        "TimmWrapperForImageClassification",
        "UnlimitedOcrForConditionalGeneration",
        "VibeVoiceAsrForConditionalGeneration",
    ),
}


@cache
def classes() -> dict[str, tuple[str, str]]:
    """List the classes by their names, with kind and model type."""
    found: dict[str, tuple[str, str]] = {}
    for kind, auto in KINDS.items():
        for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{auto}_MAPPING_NAMES").items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, (kind, model_type))
    return found


def build(name: str) -> Any:
    """Build a model of a class by its own configuration's defaults, but for their sizes."""
    _, model_type = classes()[name]
    made = getattr(tf, name)
    kind = made.config_class or tf.CONFIG_MAPPING[model_type]
    whole = kind().to_dict()
    errors = []
    for keep in (False, True):
        try:
            return made(kind.from_dict(_shrunk(whole, keep) | FURTHER.get(kind.model_type, {})))
        except Exception as error:
            errors.append(error)
    raise errors[0]


def _shrunk(settings: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Shrink the settings of a configuration and of those in it; `keep`: derived ones too, cut to two layers."""
    layers = next(
        (settings[key] for key in ("num_hidden_layers", "num_layers") if isinstance(settings.get(key), int)), 0
    )
    found = {}
    for key, value in settings.items():
        if DERIVED.fullmatch(str(key)) and value is not None:
            if isinstance(value, dict):
                found[key] = {}
            elif keep and isinstance(value, list):
                found[key] = [value[0], *value[-1:]]
        elif isinstance(value, dict) and value:
            found[key] = _shrunk({str(name): inner for name, inner in value.items()}, keep)
        elif isinstance(value, list | tuple) and layers > LAYERS and len(value) == layers:
            found[key] = [_small(str(key), value[0]), _small(str(key), value[-1])]
        else:
            found[key] = _small(str(key), value)
    return found


def _small(key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_small(key, each) for each in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if TOKEN.fullmatch(key):
        return min(value, VOCABULARY - 1)
    return next((min(value, size) for pattern, size in PATTERNS if value > 0 and pattern.fullmatch(key)), value)


def tried() -> dict[str, str]:
    """List the classes that are tried, with their kinds."""
    left = {name for names in LEFT_OUT.values() for name in names}
    return {name: kind for name, (kind, _) in classes().items() if name not in left}
