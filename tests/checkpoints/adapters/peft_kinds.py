"""Small adapters of each of PEFT's kinds on small models of transformers, and the weights that PEFT makes of them."""

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.tuners.lora.config import BdLoraConfig, KasaConfig, MontecloraConfig
from torch import Tensor

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.inputs.layers import LayerLowRank
from merganser.inputs.model_deltas import open_models

SIZES = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
CAUSAL = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**CAUSAL, attention_bias=True, tie_word_embeddings=False)
    ),
    "twelve layers, tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**CAUSAL | {"num_hidden_layers": 12}, tie_word_embeddings=True)
    ),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=16)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=24, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2
        )
    ),
    "vit": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=8, patch_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
        )
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**CAUSAL, num_local_experts=3)),
    "gpt-oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**CAUSAL, head_dim=8, num_local_experts=3, num_experts_per_tok=2)
    ),
}
TARGETS = ["q_proj", "v_proj", "down_proj"]
PROMPT = {"num_virtual_tokens": 3, "task_type": "CAUSAL_LM"}
# what an adapter of a kind needs besides the modules to be put on a small model
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ADALORA": {"init_r": 6, "target_r": 4, "total_step": 10},
    "ADAMSS": {"r": 8},
    "ADAPTION_PROMPT": {"adapter_len": 2, "adapter_layers": 1, "task_type": "CAUSAL_LM", "target_modules": "self_attn"},
    "BEFT": {"target_modules": ["q_proj", "v_proj"]},
    "BOFT": {"boft_block_size": 4},
    "C3A": {"block_size": 8},
    "CARTRIDGE": PROMPT,
    "CPT": {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1], "task_type": "CAUSAL_LM"},
    "FOURIERFT": {"n_frequency": 20},
    "FROD": {"progressbar": False},
    "GRALORA": {"r": 4},
    "IA3": {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LN_TUNING": {"target_modules": ["input_layernorm", "norm"]},
    "MISS": {"r": 4},
    "MULTITASK_PROMPT_TUNING": {**PROMPT, "num_ranks": 1, "num_tasks": 2},
    "OFT": {"oft_block_size": 4, "r": 0},
    "OSF": {"effective_rank": 4},
    "PREFIX_TUNING": PROMPT,
    "PROMPT_TUNING": PROMPT,
    "P_TUNING": PROMPT,
    "PSOFT": {"r": 4},
    "RANDLORA": {"r": 4},
    "ROAD": {"group_size": 8},
    "SHIRA": {"r": 2},
    "SUPERTUNING": {"sparsity": 0.9},
    "TINYLORA": {"r": 2, "u": 4},
    "TRAINABLE_TOKENS": {"token_indices": [1, 3, 5], "target_modules": ["embed_tokens"]},
    "UNILORA": {"r": 4, "theta_d_length": 64},
    "VBLORA": {"r": 4, "num_vectors": 16, "vector_length": 8},
    "VERA": {"r": 4},
    "WAVEFT": {"n_frequency": 20},
    "XLORA": {"adapters": {}, "hidden_size": 16},
}


@cache
def model_of(name: str) -> Any:
    """Make a small model of random weights, the same each time, which no test may change."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape))
    return model.eval()


def write_adapter(folder: Path, model: str, kind: str, **settings: Any) -> None:
    """Save a base, and an adapter of it that is trained as far as anything of it can be."""
    base = deepcopy(model_of(model))
    base.save_pretrained(folder / "base")
    config = PEFT_TYPE_TO_CONFIG_MAPPING[kind]
    known = {field.name for field in fields(config)}
    targets = {"target_modules": TARGETS} if "target_modules" in known else {}
    nested = {"kasa_config": KasaConfig, "monteclora_config": MontecloraConfig, "use_bdlora": BdLoraConfig}
    given = {key: nested[key](**value) if key in nested else value for key, value in settings.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = get_peft_model(base, config(**targets | given))
        generator = torch.Generator().manual_seed(3)
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.data += (0.2 * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)
        tuned.save_pretrained(folder / "adapter")


def merged_by_peft(folder: Path, model: str, **saved: Any) -> dict[str, Tensor]:
    """Return the parameters of the model that PEFT merges the adapter in a folder into, as open_for_merging has them.

    Raises what PEFT raises where it cannot.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = PeftModel.from_pretrained(deepcopy(model_of(model)), folder / "adapter")
        merged = loaded.base_model.merge_and_unload() if hasattr(loaded.base_model, "merge_and_unload") else None
    if merged is None:
        raise NotImplementedError("no merge_and_unload")
    merged.save_pretrained(folder / "merged", **saved)
    file = open_for_merging(folder / "merged")
    return {name: file.read(name) for name in file.names}


def merged_here(folder: Path) -> tuple[dict[str, Tensor], set[str]]:
    """Return the same as this project reads it, and the names of those that the adapter changes."""
    base = open_for_merging(folder / "base")
    deltas = open_models(base, {"a": open_model(folder / "adapter")}, ParameterRules())
    found = {}
    for name in deltas.names:
        layer = deltas.layer(name)
        delta = layer.left[0] @ layer.right[0] if isinstance(layer, LayerLowRank) else layer.deltas[0]
        found[name] = base.read(name) + delta.reshape(base.spec(name).shape)
    return {name: found.get(name, base.read(name)) for name in base.names}, set(found)


def configured(folder: Path, **changes: Any) -> None:
    """Change what an adapter's configuration says."""
    path = folder / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
