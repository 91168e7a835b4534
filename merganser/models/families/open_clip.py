"""open_clip dual encoders: the text tower makes the class heads, the image tower the features.

Built from `open_clip_config.json` beside the weights; nothing is downloaded. The library takes seconds to import, and
is imported only where a network is built: a folder is checked without it.
Shape legend: B images, C classes, P prompts, D embedding.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module

from merganser.checkpoints.architecture import read_config, read_object
from merganser.checkpoints.kinds import ParameterRules, kind_of
from merganser.checkpoints.output import TORCH
from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError, quoting, refusing
from merganser.inputs.layers import Side
from merganser.limits import SMALL, check_files, parse_json, read_small
from merganser.models import DeviceName, Extra, Inputs, Precision
from merganser.models.blocks import WithBlocks
from merganser.models.bounded import bounded
from merganser.models.dual_encoder import TEXT_BATCH, DualEncoder, checked, picture, text_digest
from merganser.models.watching import Watcher

CONFIG = "open_clip_config.json"
MODEL_TYPES = ()
MERGED = ("visual.*",)  # of the texts the class heads are made, which all tasks share
LIBRARY = "open_clip"
PIPELINES = {"": "zero-shot-image-classification"}
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
MOST_TOKENS, MOST_PATCHES = 4096, 256  # of a text, and a side of a picture: a few times what any model has
TOKENIZER_SETTINGS = {"clean", "strip_sep_token", "language"}  # others reach code that runs what a repository brings
APPLIED_AS_THEY_ARE = ("proj", "text_projection")
RULES = ParameterRules()  # a linear map is what is merged as a matrix by default


class OpenClipNetwork(DualEncoder, WithBlocks):
    """A dual encoder: the image tower gives the features, the text tower the class heads."""

    reads = "visual.*"
    mlps = (("mlp.c_fc", "mlp.c_proj"),)

    def __init__(self, folder: Path, device: DeviceName, precision: Precision) -> None:
        """Build the architecture that a folder describes, without weights."""
        if not (folder / CONFIG).exists():
            raise InputError(f"{folder}: no {CONFIG}; the base checkpoint's folder must hold one")
        self.folder, self.device, self.dtype = folder, torch.device(device), TORCH[precision]
        self.module = _build(folder).to(device=self.device, dtype=self.dtype)
        self.preprocess: dict[str, Any] = self.module.visual.preprocess_cfg
        mean, std = (torch.tensor(self.preprocess[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
        self._mean, self._std = mean.to(self.device), std.to(self.device)
        self._watcher = Watcher()

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take all parameters of a model; raise InputError naming one that is missing, strange or misshapen."""
        _load_strictly(self.module, parameters, self.folder)
        self._text = text_digest(self.module, self.folder / CONFIG, "visual.")
        self._head = None

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Resize and crop PIL images or uint8 arrays (height, width, 3): uint8 (B, 3, H, W)."""
        size = self.preprocess["size"]
        height, width = (size, size) if isinstance(size, int) else size
        if all(isinstance(image, np.ndarray) and image.shape == (height, width, 3) for image in images):
            arrays = [checked(image) for image in images]
        else:
            resize = self._resize
            arrays = [checked(np.asarray(resize(picture(image)))) for image in images]
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()

    @cached_property
    def _resize(self) -> Callable[[Any], Any]:
        """Return open_clip's own transform up to where it leaves pictures: without the scaling and normalisation."""
        from open_clip.transform import PreprocessCfg, image_transform_v2
        from torchvision.transforms import Compose, Normalize, ToTensor

        *steps, scaling, normalisation = image_transform_v2(PreprocessCfg(**self.preprocess), is_train=False).transforms
        assert isinstance(scaling, ToTensor)
        assert isinstance(normalisation, Normalize)
        return Compose(steps)

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Score every class with these parameters in place of the loaded ones of their names; differentiable."""
        maps = {name: parameters[name] for name in self.linear_maps() if name in parameters}
        with self._watcher.using(maps):
            found = functional_call(self.module, dict(parameters), kwargs={"image": self._normalised(inputs)})
        return self._scored(found["image_features"] if isinstance(found, dict) else found[0])

    def linear_maps(self) -> dict[str, Side]:
        """Name the weights of linear maps, sorted, each with the side that its inputs lie on.

        The projections of both towers are parameters of their own, applied as x W.
        """
        shapes = {name: value.shape for name, value in self.module.named_parameters()}
        names = sorted(name for name, shape in shapes.items() if kind_of(name, shape, RULES) == "matrix")
        return {name: "rows" if name.rpartition(".")[2] in APPLIED_AS_THEY_ARE else "columns" for name in names}

    def watch(self, extra: Extra) -> AbstractContextManager[object]:
        """While the block runs, add to a linear map's output (N, out) what `extra` makes of its name and input rows."""
        return self._watcher.watch({name: self.module.get_parameter(name) for name in self.linear_maps()}, extra)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""
        tokens = self._tokenizer()(list(texts)).to(self.device)
        encode: Any = self.module.encode_text
        return torch.cat([encode(batch, normalize=True) for batch in tokens.split(TEXT_BATCH)])

    def _features(self, inputs: Inputs) -> Tensor:
        features: Tensor = self.module.encode_image(self._normalised(inputs), normalize=True)
        return features

    def _normalised(self, inputs: Inputs) -> Tensor:
        """Scale and normalise pixels, as open_clip's transform does once they are tensors."""
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


def _load_strictly(module: Module, parameters: Iterable[tuple[str, Tensor]], where: Path) -> None:
    """Copy parameters into a module one at a time, so that they are never all in memory beside it.

    Raises InputError naming one that is missing, strange or misshapen.
    """
    state = module.state_dict()
    missing = set(state)
    for name, value in parameters:
        if name not in state:
            raise InputError(f"{where}: parameter {name} is not in the architecture of {CONFIG}")
        if value.shape != state[name].shape:
            raise InputError(f"{where}: {name} has shape {list(value.shape)}, {CONFIG} says {list(state[name].shape)}")
        state[name].copy_(value)
        missing.discard(name)
    if missing:
        raise InputError(f"{where}: parameter {sorted(missing)[0]} of the architecture is missing in the checkpoint")


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> OpenClipNetwork:
    """Build the architecture that a folder describes; its class heads are made of prompts, whatever their number."""
    return OpenClipNetwork(folder, device, precision)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint without open_clip's configuration, or with one that leads elsewhere."""
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder}: no {CONFIG}, which a model of the family open_clip has beside its weights")
    _check_config(folder / CONFIG)


def _build(folder: Path) -> Any:
    """Build the architecture without weights (open_clip would warn, on the root logger, that there are none)."""
    import open_clip

    check_files(folder)
    _check_config(folder / CONFIG)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        with quoting(f"{folder / CONFIG}: open_clip cannot build this model"), bounded(folder):
            return open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False).eval()
    finally:
        logging.getLogger().setLevel(level)


def _check_pictures_and_texts(vision: Mapping[str, Any], text: Mapping[str, Any], path: Path) -> None:
    """Refuse more patches of a picture, or tokens of a text, than a model has: whole tables of them are computed."""
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
    """Refuse a configuration that makes open_clip look elsewhere or run foreign code; it came with a checkpoint."""
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
