"""The `data` stage: draw a task's splits and save them the way the `datasets` library saves them."""

import hashlib
import io
from dataclasses import asdict
from pathlib import Path

from datasets import ClassLabel, Features, Image
from PIL import Image as PillowImage

from common.saving import Split, save_splits
from common.stages import Sizes
from suite.canvas import Labels, Pixels
from suite.tasks import SPLITS, TASKS, draw


def write_dataset(task: str, seed: int, sizes: Sizes, out: Path) -> None:
    """Write the task's splits (columns image, label) to `out`, with the hash of each split's pixels in `pixels.json`.

    The folder's bytes are a function of the arguments and of the versions of numpy, Pillow and matplotlib. Glyphs
    may change with these; a changed `pixels.json` shows it.
    """
    splits = {split: _split(*draw(task, split, seed, asdict(sizes)[split])) for split in SPLITS}
    features = Features({"image": Image(), "label": ClassLabel(names=TASKS[task].CLASS_NAMES)})
    save_splits(splits, features, out, "pixels.json")


def pixel_hash(images: Pixels, labels: Labels) -> str:
    """Return the SHA-256 of the images' and labels' bytes."""
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


def _split(images: Pixels, labels: Labels) -> Split:
    rows = [{"bytes": _png(image), "path": None} for image in images]
    return Split({"image": rows, "label": labels.tolist()}, pixel_hash(images, labels))


def _png(image: Pixels) -> bytes:
    encoded = io.BytesIO()
    PillowImage.fromarray(image).save(encoded, format="PNG")
    return encoded.getvalue()
