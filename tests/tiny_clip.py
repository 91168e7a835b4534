"""A tiny open_clip model and a tiny labelled image data set, made on the spot."""

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import open_clip
import torch
from datasets import Array3D, ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as Picture
from torch import Tensor

from merganser.checkpoints.writing import save_tensors
from merganser.evaluation import get_kind
from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.models import open_network

KIND = "image_classification"
CLASSES = ["dark", "light", "red"]
CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
}


def clip_parameters(folder: Path, seed: int = 0, config: dict[str, Any] = CONFIG) -> dict[str, Tensor]:
    """Write the tiny model's configuration into a folder; return the model's parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def write_clip(
    folder: Path, file: str = "model.safetensors", seed: int = 0, config: dict[str, Any] = CONFIG
) -> dict[str, Tensor]:
    """Write the tiny model, weights and configuration; return its parameters."""
    parameters = clip_parameters(folder, seed, config)
    save_tensors(folder / file, parameters)
    return parameters


def pictures(count: int, size: int = 16, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    """Draw uint8 pictures (count, size, size, 3) and labels, half of them true: no model gets all or none right."""
    generator = np.random.default_rng(seed)
    labels = [i % len(CLASSES) for i in range(count)]
    drawn = np.where(generator.random(count) < 0.5, labels, generator.integers(len(CLASSES), size=count))
    level = np.array([[40, 40, 40], [210, 210, 210], [200, 40, 40]])[drawn]
    noise = generator.integers(-30, 30, (count, size, size, 3))
    return (level[:, None, None, :] + noise).clip(0, 255).astype(np.uint8), labels


def write_data_set(folder: Path, counts: dict[str, int], size: int = 16, arrays: bool = False) -> None:
    """Write the splits as `datasets` saves them, images encoded or as plain arrays."""
    feature = Array3D((size, size, 3), "uint8") if arrays else Image()
    features = Features({"image": feature, "label": ClassLabel(names=CLASSES)})
    splits = {}
    for seed, (split, count) in enumerate(counts.items()):
        images, labels = pictures(count, size, seed)
        column = list(images) if arrays else [Picture.fromarray(image) for image in images]
        splits[split] = Dataset.from_dict({"image": column, "label": labels}, features=features)
    DatasetDict(splits).save_to_disk(folder)


def score_clip(
    model: Path,
    parameters: Iterable[tuple[str, Tensor]],
    data: Path,
    split: str = "test",
    batch_size: int = 8,
    classes: list[str] | None = None,
) -> Results:
    """Run a model with the configuration in a folder on one split of a saved data set."""
    settings = get_kind(KIND).Settings.model_validate({"templates": ["a {} image."], "classes": classes})
    network, evaluator = open_network("open_clip", model), Evaluator(KIND, settings, "accuracy")
    with TemporaryDirectory() as made:
        evaluator.prepare(data, split, network, Path(made))
        network.load(parameters)
        return evaluator.results(network, Prepared(Path(made)), batch_size)
