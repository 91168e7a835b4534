"""The `data` stage: draw a task's splits and save them the way the `datasets` library saves them."""

import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, NamedSplit, disable_progress_bars
from PIL import Image as PillowImage

from suite.canvas import Drawn, Labels, Pixels
from suite.settings import Sizes
from suite.tasks import SPLITS, TASKS, draw


def write_dataset(task: str, seed: int, sizes: Sizes, out: Path) -> None:
    """Write the task's splits (columns image, label) to `out`, with the hash of each split's pixels in `pixels.json`.

    The folder's bytes are a function of the arguments and of the versions of numpy, Pillow and matplotlib. Glyphs
    may change with these; a changed `pixels.json` shows it.
    """
    drawn = {split: draw(task, split, seed, asdict(sizes)[split]) for split in SPLITS}
    hashes = {split: pixel_hash(*images_and_labels) for split, images_and_labels in drawn.items()}
    features = Features({"image": Image(), "label": ClassLabel(names=TASKS[task].CLASS_NAMES)})
    splits = {split: _dataset(split, drawn[split], features, hashes[split]) for split in SPLITS}
    disable_progress_bars()
    DatasetDict(splits).save_to_disk(out)
    (out / "pixels.json").write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")


def pixel_hash(images: Pixels, labels: Labels) -> str:
    """Return the SHA-256 of the images' and labels' bytes."""
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


def _dataset(split: str, drawn: Drawn, features: Features, fingerprint: str) -> Dataset:
    """Build the split with a fingerprint of its content, as the library's own is no promise of equal bytes."""
    images, labels = drawn
    rows = {"image": [{"bytes": _png(image), "path": None} for image in images], "label": labels.tolist()}
    dataset = Dataset.from_dict(rows, features=features)
    return Dataset(dataset.data, info=dataset.info, split=NamedSplit(split), fingerprint=fingerprint)


def _png(image: Pixels) -> bytes:
    encoded = io.BytesIO()
    PillowImage.fromarray(image).save(encoded, format="PNG")
    return encoded.getvalue()
