"""Tiny models of transformers, as it builds and saves them itself: two layers, width 16."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from tests import timm_models
from tests.every_class import VOCABULARY, WIDTH, build

SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
DECODER = {**SIZES, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2}
PICTURES = {key: SIZES[key] for key in list(SIZES)[:4]} | {"image_size": 16, "patch_size": 8}
TEXTS = SIZES | {"bos_token_id": 1, "eos_token_id": 2}
DEBERTA = {
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "conv_kernel_size": 3,
}
T5 = {
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
}
BART = {"d_model": WIDTH, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "pad_token_id": 1} | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
}
DISTILBERT = {"dim": WIDTH, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": VOCABULARY}
CONVNEXT = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 32}

MODELS: dict[str, Callable[[], Any]] = {
    "llama, tied": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER, tie_word_embeddings=True)),
    "llama, untied": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER, tie_word_embeddings=False)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2, bos_token_id=1, eos_token_id=2)),
    "t5": lambda: tf.T5ForConditionalGeneration(tf.T5Config(**T5)),
    "bert": lambda: tf.BertForSequenceClassification(tf.BertConfig(**SIZES)),
    "roberta": lambda: tf.RobertaForSequenceClassification(tf.RobertaConfig(**SIZES)),
    "deberta-v3": lambda: tf.DebertaV2ForSequenceClassification(tf.DebertaV2Config(**SIZES, **DEBERTA)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**DECODER)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**DECODER)),
    "gemma": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**DECODER, head_dim=8)),
    "mixtral": lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**DECODER, num_local_experts=4)),
    "qwen2-moe": lambda: tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**DECODER, **EXPERTS)),
    "bart": lambda: tf.BartForConditionalGeneration(tf.BartConfig(**BART)),
    "distilbert": lambda: tf.DistilBertForSequenceClassification(tf.DistilBertConfig(**DISTILBERT)),
    "siglip": lambda: tf.SiglipModel(tf.SiglipConfig(text_config=TEXTS, vision_config=PICTURES)),
    "convnext": lambda: tf.ConvNextForImageClassification(tf.ConvNextConfig(**CONVNEXT)),
    "clip": lambda: tf.CLIPModel(tf.CLIPConfig(text_config=TEXTS, vision_config=PICTURES, projection_dim=12)),
    "vit": lambda: tf.ViTForImageClassification(tf.ViTConfig(**PICTURES)),
}


def tiny(name: str, seed: int = 0) -> Any:
    """Build a model of `MODELS`, timm or a class with weights of size one tenth, none of them constant."""
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    made = MODELS.get(name) or timm_models.MODELS.get(name)
    model = made() if made else build(name)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tuned(model: Any, seed: int, size: float = 0.02) -> Any:
    """Change a model's weights in place, tied ones together."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def save_bin(model: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Save a model as older versions of transformers did: all names, tied ones sharing their memory."""
    model.config.save_pretrained(folder)
    torch.save(model.state_dict() if state is None else state, folder / "pytorch_model.bin")


def save_models(
    folder: Path, name: str, tasks: int = 3, dtype: torch.dtype = torch.float32, shard: str = "50GB"
) -> dict[str, Path]:
    """Save `base` and models fine-tuned from it, `task0`..., by `save_pretrained`."""
    paths = {key: folder / key for key in ("base", *(f"task{t}" for t in range(tasks)))}
    for t, path in enumerate(paths.values()):
        path.mkdir(parents=True, exist_ok=True)
        for file, content in saved_model(name, t, dtype, shard).items():
            (path / file).write_bytes(content)
    return paths


@lru_cache(200)
def saved_model(name: str, seed: int, dtype: torch.dtype, shard: str) -> dict[str, bytes]:
    """Give the files of a model as `save_pretrained` writes them, fine-tuned unless the seed is 0; many tests ask."""
    model = tuned(tiny(name), seed) if seed else tiny(name)
    with TemporaryDirectory() as folder:
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def load(model: Any, folder: Path) -> Any:
    """Load a folder as a class of model by `from_pretrained`, and hold it to have found exactly its own weights."""
    loaded, found = type(model).from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(found.values()), found
    return loaded
