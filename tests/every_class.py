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
    "token_classifier": "TOKEN_CLASSIFICATION",
    "reader": "QUESTION_ANSWERING",
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
ROPE = {"rope_type": "default", "rope_theta": 1e4}
HALF = {"partial_rotary_factor": 0.5}
HYBRID = ["linear_attention", "full_attention"]  # one layer of each: transformers generates with no net of the first
ZAMBA = {"attention_hidden_size": 32, "attention_head_dim": 16, "num_hidden_layers": 3} | {
    "layers_block_type": ["linear_attention", "hybrid", "hybrid"]
}
CODES = {"base_channels": 32, "channel_multiplier": [1, 1], "num_embeddings": 16, "latent_channels": 8}
SPEECH = {"num_filters": 2, "depths": [1, 1, 1], "downsampling_ratios": [2, 2]}
TIMM = {"architecture": "test_resnet", "model_args": None}
EFFICIENT = {"width_coefficient": 0.25, "depth_coefficient": 0.3}
PICTURE_TOKENS = {"vocabulary_map": {"<image>": 4}}
# What the rules do not come to, by the model type of a configuration or of one in it, or by the name of a class.
FURTHER: dict[str, dict[str, Any]] = {
    "align_vision_model": EFFICIENT,
    "axk1": {"n_group": 1, "topk_group": 1},
    "bailing_hybrid": {
        "layer_types": HYBRID,
        "mlp_layer_types": ["dense", "sparse"],
        "num_expert_group": 1,
        "topk_group": 1,
    },
    "bamba": {"attn_layer_indices": [1]},
    "bert-generation": {"is_decoder": True},
    "bit": {"num_groups": 4, "hidden_sizes": [WIDTH, WIDTH]},
    "blt": {"encoder_hash_byte_group_vocab": VOCABULARY},
    "blt_local_decoder": {"hidden_size_global": WIDTH},
    "blt_local_encoder": {"hidden_size_global": WIDTH},
    "chameleon": PICTURE_TOKENS,
    "chameleon_vqgan": CODES | {"resolution": 32},
    "codegen": {"rotary_dim": 2, "n_head": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE}},
    "cosmos3_edge_text": {"rope_parameters": {"mrope_section": [2, 1, 1]}},
    "cpmant": {"dim_ff": 32},
    "convnext": {"image_size": 64},
    "convnextv2": {"image_size": 64},
    "cvt": {"depth": [1, 2, 3]},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_ocr2_sam_vision_model": {"output_channels": 8, "downsample_channels": [8, 16]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_routed_experts": 4},
    "deepseek_v3": {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "deepseek_vl_hybrid": {"high_res_vision_config": {"output_channels": 8}},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "efficientnet": EFFICIENT | {"hidden_dim": 320, "image_size": 64},
    "emu3": PICTURE_TOKENS,
    "emu3_vqgan": CODES | {"codebook_size": 16},
    "ernie4_5_vl_moe_text": {"rope_parameters": {"mrope_section": [1, 1, 2]}},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma3n_vision": TIMM,
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 1, "layer_types": ["full_attention"] * 2}},
    "got_ocr2": {"vision_config": {"output_channels": 8}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granite4_vision": {
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[0, 0], [1, 1]],
        "vision_config": {"hidden_size": 64},  # its heads are of width 64
    },
    "granitemoehybrid": {"layer_types": HYBRID},
    "hgnet_v2": {
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 8, 16, 16],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [8, 16, 16, 16],
        "hidden_sizes": [8, 16, 16, 16],
    },
    "hiera": {"image_size": [64, 64], "patch_stride": [4, 4]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "hunyuan_v1_dense": {"rope_parameters": ROPE, "head_dim": 8},
    "hunyuan_v1_moe": {"rope_parameters": ROPE, "head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "janus_vqgan": CODES,
    "kimi_linear": {"layer_types": HYBRID, "mlp_layer_types": ["dense", "sparse"]},
    "led": {"attention_window": 4},
    "levit": {"image_size": 64, "patch_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_head_dim": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
    "mamba2": {"num_heads": 4},
    "mimo_v2_flash": {"num_key_value_heads": 1, "rope_parameters": {"full_attention": HALF, "sliding_attention": HALF}},
    "ministral": {"rope_parameters": ROPE, "head_dim": 8},
    "mistral_large4_text": {"kv_source_layers": [0, 1]},
    "mobilebert": {"intra_bottleneck_size": WIDTH, "true_hidden_size": WIDTH, "embedding_size": WIDTH},
    "mobilenet_v1": {"depth_multiplier": 0.1, "min_depth": 4},
    "mobilenet_v2": {"depth_multiplier": 0.1, "min_depth": 4},
    "mobilevitv2": {"width_multiplier": 0.1, "image_size": 64},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, 0]}},
    "nemotron": {"num_key_value_heads": 2},
    "neomme": {"embedding_rank": 8, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
    "perceiver": {"num_cross_attention_heads": 1},
    "perception_lm": {
        "vision_config": {"architecture": "test_vit", "model_args": {"embed_dim": WIDTH, "depth": LAYERS}}
    },
    "phi4_multimodal_audio": {
        "nemo_conv_channels": 16,
        "ext_pw_out_channel": 16,
        "depthwise_separable_out_channel": 16,
    },
    "pp_formulanet_vision": {
        "output_channels": 8,
        "post_conv_in_channels": 8,
        "post_conv_mid_channels": 16,
        "post_conv_out_channels": 16,
    },
    "pp_lcnet": {"scale": 0.25, "class_expand": 32},
    "pvt": {"image_size": 64},
    "pvt_v2": {"image_size": {"height": 64, "width": 64}},
    "qwen3_5_moe_text": {"layer_types": HYBRID},
    "qwen3_5_text": {"layer_types": HYBRID},
    "qwen3_next": {"layer_types": HYBRID},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"],
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "radio": {"max_img_size": 32},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "ReformerForMaskedLM": {"is_decoder": False},
    "swin": {"window_size": 2},
    "textnet": {"stem_out_channels": WIDTH},
    "timm_wrapper": TIMM,
    "unlimited_ocr_sam_vision_model": {"output_channels": 8, "downsample_channels": [8, 16]},
    "vibevoice_acoustic_tokenizer_encoder": SPEECH,
    "videoprism_vision_model": {"tubelet_size": [1, 8, 8]},
    "xlstm": {"hidden_size": 64, "embedding_dim": 64, "qk_dim_factor": 1.0},
    "zamba": ZAMBA,
    "zamba2": ZAMBA | {"hybrid_layer_ids": [1, 2], "mamba_headdim": 8, "n_mamba_heads": 4},
}


# Classes that are not tried, by the reason.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "asks for natten, which is not installed": ("DinatForImageClassification",),
    "asks for detectron2, which is not installed": ("LayoutLMv2ForSequenceClassification",),
    "asks that all its layers share keys and values, which the model it is made of refuses in 5.23": (
        "Gemma4AssistantForCausalLM",
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
            return made(kind.from_dict(_with(_shrunk(whole, keep), FURTHER.get(name, {}))))
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
    return _with(found, FURTHER.get(settings.get("model_type", ""), {}))


def _with(settings: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Set more settings, those of configurations within one by one."""
    return settings | {
        key: _with(settings[key], value) if isinstance(settings.get(key), dict) and value else value
        for key, value in more.items()
    }


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
