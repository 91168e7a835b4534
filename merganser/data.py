"""Labelled image data sets as `datasets` saves them: a folder a split, with the columns `image` and `label`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError


def load_saved(folder: Path) -> Any:
    """Open a saved data set or one of its splits, memory-mapped; raise InputError when it is not whole."""
    from datasets import load_from_disk

    try:
        return load_from_disk(folder)
    except (IndexError, KeyError, OSError, ValueError) as error:  # an empty split is an IndexError there
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{folder}: not a whole saved data set, or an empty split ({reason}); fetch it again"
        ) from error


def check_data_set(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse a data set without an `image` column (pictures or uint8 arrays) or a `label` with class names."""
    from datasets import Array3D, ClassLabel, Image

    for split, rows in splits.items():
        missing = [name for name in ("image", "label") if name not in rows.column_names]
        if missing:
            raise InputError(f"{source}: split {split} has no column {missing[0]!r}; it has {rows.column_names}")
        if not isinstance(rows.features["label"], ClassLabel):
            raise InputError(f"{source}: split {split}: the label column has no class names; cast it to ClassLabel")
        image = rows.features["image"]
        if not isinstance(image, Image) and not (isinstance(image, Array3D) and image.dtype == "uint8"):
            raise InputError(f"{source}: split {split}: image is {image}; expected Image or a uint8 Array3D")


def class_names(folder: Path) -> list[str]:
    """Return the names of a saved data set's classes; raise InputError when there is no data set."""
    names: list[str] = load_saved(folder / _splits(folder)[0]).features["label"].names
    return names


def open_split(folder: Path, split: str) -> Any:
    """Open one split of a saved data set: images as PIL images or uint8 arrays, labels as integers."""
    from datasets import Image

    splits = _splits(folder)
    if split not in splits:
        raise InputError(f"evaluation.split: {folder} has no split {split!r}; it has {', '.join(splits)}")
    rows = load_saved(folder / split)
    if isinstance(rows.features["image"], Image):
        return rows
    # Plain arrays would come as nested lists, a hundred times slower.
    return rows.with_format("numpy", columns=["image"], output_all_columns=True, dtype="uint8")


def _splits(folder: Path) -> list[str]:
    if not (folder / "dataset_dict.json").is_file():
        raise InputError(f"{folder}: no saved data set; fetch it first")
    splits: list[str] = json.loads((folder / "dataset_dict.json").read_text())["splits"]
    return splits
