"""The tiny CLIP: an open_clip dual encoder of 0.84 M image-tower parameters, its class heads and its files."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from suite.canvas import SIZE, Pixels

CONTEXT_LENGTH = 16
MODEL_CONFIG = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": SIZE, "layers": 4, "width": 128, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": CONTEXT_LENGTH, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
MEAN, STD = 0.5, 0.25
PREPROCESS_CONFIG = {"mean": [MEAN] * 3, "std": [STD] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}

Tokenizer = Callable[[Sequence[str]], Tensor]


def new_model(seed: int) -> tuple[open_clip.CLIP, Tokenizer]:
    """Return an untrained model and its tokenizer."""
    torch.manual_seed(seed)
    return open_clip.CLIP(**copy.deepcopy(MODEL_CONFIG)), SimpleTokenizer(context_length=CONTEXT_LENGTH)


def load_model(folder: Path) -> tuple[open_clip.CLIP, Tokenizer]:
    """Return the complete model saved in the folder, and its tokenizer."""
    name = f"local-dir:{folder}"
    return open_clip.create_model(name), open_clip.get_tokenizer(name)


def save_weights(weights: dict[str, Tensor], out: Path) -> None:
    """Write the weights and the configuration under the names that open_clip looks for."""
    out.mkdir(parents=True, exist_ok=True)
    config = {"model_cfg": MODEL_CONFIG, "preprocess_cfg": PREPROCESS_CONFIG}
    (out / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    contiguous = {name: weight.detach().contiguous() for name, weight in weights.items()}
    save_file(contiguous, out / "open_clip_model.safetensors")


def normalise(images: Pixels) -> Tensor:
    """Turn N x S x S x 3 bytes into the model's N x 3 x S x S input."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def prompts(class_names: Sequence[str], templates: Sequence[str]) -> list[list[str]]:
    """Return each class's prompts."""
    return [[template.format(name) for template in templates] for name in class_names]


@torch.no_grad()
def text_features(model: open_clip.CLIP, tokens: Sequence[Tensor]) -> Tensor:
    """Return C x D unit features: for each class the mean of its prompts' unit features."""
    model.eval()
    means = [model.encode_text(prompt_tokens, normalize=True).mean(0) for prompt_tokens in tokens]
    return functional.normalize(torch.stack(means), dim=-1)


def class_head(
    model: open_clip.CLIP, tokenizer: Tokenizer, class_names: Sequence[str], templates: Sequence[str]
) -> Tensor:
    """Return the C x D head whose product with unit image features gives the task's logits."""
    tokens = [tokenizer(of_class) for of_class in prompts(class_names, templates)]
    return text_features(model, tokens) * model.logit_scale.detach().exp()
