"""open_clip dual encoders: the text tower makes the class heads, the image tower the features.

Built from `open_clip_config.json` beside the weights; nothing is downloaded.
Shape legend: B images, C classes, P prompts, D embedding.
"""

import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import normalize

from merganser.checkpoints.tensors import to_bytes
from merganser.errors import InputError
from merganser.limits import parse_json, read_small

CONFIG = "open_clip_config.json"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
TOKENIZER_SETTINGS = {"clean", "strip_sep_token", "language"}  # others reach code that runs what a repository brings
TEXT_BATCH = 256
HEADS_KEPT = 64

_heads: dict[str, Tensor] = {}  # by what they were computed from


@dataclass(frozen=True)
class OpenClipClassifier:
    """A dual encoder whose class heads were computed once."""

    model: Module
    head: Tensor  # (C, D), times the logit scale
    preprocess: dict[str, Any]  # open_clip's: size, mean, std, interpolation, resize_mode

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Turn PIL images or uint8 arrays (height, width, 3) into the model's input (B, 3, H, W)."""
        size = self.preprocess["size"]
        height, width = (size, size) if isinstance(size, int) else size
        arrays = [_rgb(image) for image in images]
        if all(array.shape == (height, width, 3) for array in arrays):
            batch = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous().float().div_(255)
            mean, std = (torch.tensor(self.preprocess[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
            return batch.sub_(mean).div_(std)
        return self._resized(arrays)

    def _resized(self, arrays: Sequence[np.ndarray]) -> Tensor:
        from PIL import Image

        transform = image_transform_v2(PreprocessCfg(**self.preprocess), is_train=False)
        return torch.stack([transform(Image.fromarray(array)) for array in arrays])

    @torch.inference_mode()
    def logits(self, pixels: Tensor) -> Tensor:
        """Score every class: (B, C)."""
        return self.model.encode_image(pixels, normalize=True) @ self.head.T  # type: ignore[operator]


class OpenClipNetwork:
    """A dual encoder that takes the parameters of one model after another."""

    def __init__(self, folder: Path) -> None:
        """Build the architecture that a folder describes, without weights."""
        if not (folder / CONFIG).is_file():
            raise InputError(f"{folder}: no {CONFIG}; the base checkpoint's folder must hold one")
        self.folder = folder
        self.model = _build(folder)

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take all parameters of a model; raise InputError naming one that is missing, strange or misshapen."""
        _load(self.model, parameters, self.folder)
        self._text = _text_digest(self.model, self.folder)

    def classifier(self, prompts: Sequence[Sequence[str]]) -> OpenClipClassifier:
        """Make a head of each class's prompts, once a process for one text tower and one set of prompts.

        The text tower is frozen in most comparisons, and its prompts can take longer to encode than the images.
        """
        key = sha256(json.dumps(prompts).encode() + self._text).hexdigest()
        if key not in _heads:
            if len(_heads) == HEADS_KEPT:
                del _heads[next(iter(_heads))]
            _heads[key] = self._heads(prompts)
        return OpenClipClassifier(self.model, _heads[key], self.model.visual.preprocess_cfg)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""
        tokens = self._tokenizer()(list(texts))
        return torch.cat([self.model.encode_text(batch, normalize=True) for batch in tokens.split(TEXT_BATCH)])

    def _tokenizer(self) -> Any:
        try:
            return open_clip.get_tokenizer(f"local-dir:{self.folder}")
        except Exception as error:  # what a tokenizer's files may lack is told in many ways
            raise InputError(f"{self.folder}: open_clip cannot make the tokenizer: {error}") from error

    @torch.inference_mode()
    def _heads(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Return each class's unit vector, the mean direction of its prompts' embeddings, times the scale (C, D)."""
        embeddings = self.embed([text for of_class in prompts for text in of_class])
        means = [group.mean(dim=0) for group in embeddings.split([len(of_class) for of_class in prompts])]
        return normalize(torch.stack(means), dim=-1) * self.model.logit_scale.exp()


def open_network(folder: Path) -> OpenClipNetwork:
    """Build the architecture that a folder describes."""
    return OpenClipNetwork(folder)


def _text_digest(model: Module, folder: Path) -> bytes:
    """Hash the text tower: its configuration and its parameters."""
    digest = sha256((folder / CONFIG).read_bytes())
    for name, value in model.state_dict().items():
        if not name.startswith("visual."):
            digest.update(name.encode())
            digest.update(to_bytes(value))
    return digest.digest()


def _build(folder: Path) -> Any:
    """Build the architecture without weights (open_clip would warn, on the root logger, that there are none)."""
    _check_config(folder / CONFIG)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        return open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False).eval()
    except Exception as error:  # sizes that do not fit are told in many ways
        raise InputError(f"{folder / CONFIG}: open_clip cannot build this model: {error}") from error
    finally:
        logging.getLogger().setLevel(level)


def _check_config(path: Path) -> None:
    """Refuse a configuration that makes open_clip look elsewhere or run foreign code; it came with a checkpoint."""
    try:
        config = parse_json(read_small(path))["model_cfg"]
        vision, text = config["vision_cfg"], config["text_cfg"]
        named = [vision.get("timm_model_name") or "x", text.get("hf_model_name") or "x"]
        strange = [name for name in named if not HUB_NAME.fullmatch(name) or name.startswith(".")]
        strange += sorted(set(text.get("tokenizer_kwargs") or {}) - TOKENIZER_SETTINGS)
        beside = [path.with_name(name) for name in ("config.json", "tokenizer_config.json")]
        strange += [
            file.name for file in beside if file.is_file() and "auto_map" in parse_json(read_small(file, 2**25))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not the configuration of a model ({error}); fetch it again") from error
    if strange:
        raise InputError(f"{path}: {strange[0]!r} could lead out of the checkpoint or run code that came with it")


def _load(model: Module, parameters: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Copy parameters into the model one at a time, so that they are never all in memory beside it."""
    state = model.state_dict()
    missing = set(state)
    for name, value in parameters:
        if name not in state:
            raise InputError(f"{folder}: parameter {name} is not in the architecture of {CONFIG}")
        if value.shape != state[name].shape:
            raise InputError(f"{folder}: {name} has shape {list(value.shape)}, {CONFIG} says {list(state[name].shape)}")
        state[name].copy_(value)
        missing.discard(name)
    if missing:
        raise InputError(f"{folder}: parameter {sorted(missing)[0]} of the architecture is missing in the checkpoint")


def _rgb(image: Any) -> np.ndarray:
    """Return a uint8 array (height, width, 3) of a PIL image or of such an array."""
    array = image if isinstance(image, np.ndarray) else np.asarray(image.convert("RGB"))
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise InputError(f"an image is {array.dtype} {list(array.shape)}; expected uint8 (height, width, 3)")
    return array
