"""open_clip's dual encoders: the text tower gives the class heads, the image tower the features.

They are built from `open_clip_config.json` next to the weights, without downloads. The library takes seconds to import
and is only imported to build a network, not to check a folder. Shape legend: B images, C classes, P prompts, D
embedding.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merganser.checkpoints.architecture import read_config, read_object
from merganser.checkpoints.bounded import bounded
from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.weight_files import weight_bytes
from merganser.checkpoints.writing import TORCH
from merganser.errors import InputError, quoting, refusing
from merganser.limits import SMALL, check_files, parse_json, read_small
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.dual_encoder import TEXT_BATCH, DualEncoder
from merganser.models.named_module import Maps
from merganser.models.naming import naming_of
from merganser.models.pictures import picture, stacked

CONFIG = "open_clip_config.json"
MODEL_TYPES = ()
MERGED = ("visual.*",)  # of the texts the class heads are made, which all tasks share
LIBRARY = "open_clip"
PIPELINES = {"": "zero-shot-image-classification"}
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
MOST_TOKENS, MOST_PATCHES = 4096, 256  # of a text, and a side of a picture: a few times what any model has
TOKENIZER_SETTINGS = {"clean", "strip_sep_token", "language"}  # others reach code that runs what a repository brings
APPLIED_AS_THEY_ARE = ("proj", "text_projection")


class OpenClipNetwork(DualEncoder):
    """A dual encoder: the image tower gives the features, the text tower the class heads."""

    image_side = "visual."
    reads = "visual.*"
    mlps = (("mlp.c_fc", "mlp.c_proj"),)

    def __init__(self, folder: Path, device: DeviceName, precision: Precision) -> None:
        """Build the architecture that a folder describes, without weights."""
        if not (folder / CONFIG).exists():
            raise InputError(f"{folder}: no {CONFIG}; the base checkpoint's folder must hold one")
        self.folder, self.dtype = folder, TORCH[precision]
        module = _build(folder).to(device=torch.device(device), dtype=self.dtype)
        super().__init__(module, naming_of(module, folder, prefix="", config=CONFIG))
        self.preprocess: dict[str, Any] = self.module.visual.preprocess_cfg
        mean, std = (torch.tensor(self.preprocess[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
        self._mean, self._std = mean.to(self.device), std.to(self.device)

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Resize and crop PIL images or uint8 arrays (height, width, 3): uint8 (B, 3, H, W)."""
        size = self.preprocess["size"]
        height, width = (size, size) if isinstance(size, int) else size
        if all(isinstance(image, np.ndarray) and image.shape == (height, width, 3) for image in images):
            return stacked(images)
        return stacked(map(self._resize, map(picture, images)))

    @cached_property
    def _resize(self) -> Callable[[Any], Any]:
        """Return open_clip's transform without the final scaling and normalisation."""
        from open_clip.transform import PreprocessCfg, image_transform_v2
        from torchvision.transforms import Compose, Normalize, ToTensor

        *steps, scaling, normalisation = image_transform_v2(PreprocessCfg(**self.preprocess), is_train=False).transforms
        assert isinstance(scaling, ToTensor)
        assert isinstance(normalisation, Normalize)
        return Compose(steps)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""
        tokens = self._tokenizer()(list(texts)).to(self.device)
        encode: Any = self.module.encode_text
        return torch.cat([encode(batch, normalize=True) for batch in tokens.split(TEXT_BATCH)])

    def _weights(self) -> Maps:
        """Return all weights of both towers; their projections are separate parameters, applied as x W."""
        named = self.module.named_parameters()
        return {n: (value, "rows" if n.rpartition(".")[2] in APPLIED_AS_THEY_ARE else "columns") for n, value in named}

    def _features(self, inputs: Inputs) -> Tensor:
        features: Tensor = self.module.encode_image(self._normalised(inputs), normalize=True)
        return features

    def _normalised(self, inputs: Inputs) -> Tensor:
        """Scale and normalise pixels, as open_clip's transform does for tensors."""
        pixels = inputs["pixels"].to(self.device).float().div_(255)
        return pixels.sub_(self._mean).div_(self._std).to(self.dtype)

    def _tokenizer(self) -> Any:
        import open_clip
        from open_clip.tokenizer import DEFAULT_CONTEXT_LENGTH

        text = parse_json(read_small(self.folder / CONFIG))["model_cfg"]["text_cfg"]
        if not text.get("hf_tokenizer_name") and not text.get("tokenizer_kwargs"):
            # Its vocabulary was built as open_clip was imported; to build another takes 0.1 s.
            return partial(open_clip.tokenize, context_length=text.get("context_length", DEFAULT_CONTEXT_LENGTH))
        with quoting(f"{self.folder}: open_clip cannot make the tokenizer"):
            return open_clip.get_tokenizer(f"local-dir:{self.folder}")


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> OpenClipNetwork:
    """Build the architecture in a folder's configuration; its class heads come from prompts of any number."""
    return OpenClipNetwork(folder, device, precision)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint without open_clip's configuration, or with one that refers elsewhere."""
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder}: no {CONFIG}, which models of the family open_clip need next to their weights")
    _check_config(folder / CONFIG)


def _build(folder: Path) -> Any:
    """Build the architecture without weights, and without open_clip's warning about that on the root logger."""
    import open_clip

    check_files(folder)
    _check_config(folder / CONFIG)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        with quoting(f"{folder / CONFIG}: open_clip cannot build this model"), bounded(weight_bytes(folder)):
            return open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False).eval()
    finally:
        logging.getLogger().setLevel(level)


def _check_pictures_and_texts(vision: Mapping[str, Any], text: Mapping[str, Any], path: Path) -> None:
    """Refuse more patches per picture, or tokens per text, than any model has: whole tables of them are built."""
    size, patch = (
        value[0] if isinstance(value, list) else value for value in map(vision.get, ("image_size", "patch_size"))
    )
    if isinstance(size, int) and isinstance(patch, int) and (patch < 1 or size // patch > MOST_PATCHES):
        problem = (
            f"image_size is {size} and patch_size {patch}, and no model has more than {MOST_PATCHES} patches a side"
        )
        raise InputError(f"{path}: model_cfg.vision_cfg: {problem}")
    context = text.get("context_length")
    if isinstance(context, int) and context > MOST_TOKENS:
        problem = f"context_length is {context}, and no model has more than {MOST_TOKENS}"
        raise InputError(f"{path}: model_cfg.text_cfg: {problem}")


def _check_config(path: Path) -> None:
    """Refuse an untrusted configuration that makes open_clip look elsewhere or run foreign code."""
    with refusing(f"{path}: not the configuration of a model", "fetch it again"):
        config = (read_config(path, SMALL) or {})["model_cfg"]
        vision, text = config["vision_cfg"], config["text_cfg"]
        _check_pictures_and_texts(vision, text, path)
        named = [vision.get("timm_model_name") or "x", text.get("hf_model_name") or "x"]
        strange = [name for name in named if not HUB_NAME.fullmatch(name) or name.startswith(".")]
        strange += sorted(set(text.get("tokenizer_kwargs") or {}) - TOKENIZER_SETTINGS)
        beside = [path.with_name(name) for name in ("config.json", "tokenizer_config.json")]
        strange += [file.name for file in beside if "auto_map" in (read_object(file, 2**25) or {})]
    if strange:
        raise InputError(f"{path}: {strange[0]!r} could lead out of the checkpoint or run code that came with it")
