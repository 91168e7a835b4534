"""Labelled image data sets as `datasets` saves them: a folder a split, with the columns `image` and `label`."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.limits import check_plain, parse_json, read_small

SPLITS = "dataset_dict.json"


def load_saved(folder: Path) -> Any:
    """Open a saved data set or one of its splits, memory-mapped; raise InputError when it is not whole."""
    from datasets import load_from_disk

    try:
        _check_names(folder)
        return load_from_disk(folder)
    except InputError:
        raise
    except Exception as error:  # of a file that is cut off or edited, `datasets` and Arrow raise a dozen kinds
        reason = str(error) or type(error).__name__  # an empty split is an IndexError there
        raise InputError(
            f"{folder}: not a whole saved data set, or an empty split ({reason}); fetch it again"
        ) from error


def _check_names(folder: Path) -> None:
    """Refuse splits and files that lie elsewhere: `datasets` would follow them."""
    if (folder / SPLITS).is_file():
        for split in _splits(folder):
            check_plain(split, folder / SPLITS)
    for state in sorted(folder.glob("state.json")) + sorted(folder.glob("*/state.json")):
        for file in parse_json(read_small(state))["_data_files"]:
            check_plain(file["filename"], state)


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


def check_pictures(splits: Mapping[str, Any], source: Path, stores: Collection[str | Path] = ()) -> None:
    """Refuse pictures that are not in the data set but only named in it: any file and address could be read so.

    `stores`: folders in which a named picture may lie, those into which the data set was downloaded.
    """
    from datasets import Image

    own = [os.path.realpath(store) for store in stores]
    for split, rows in splits.items():
        if not isinstance(rows.features["image"], Image):
            continue
        for chunk in rows.data.column("image").chunks:
            named = chunk.filter(chunk.field("bytes").is_null()).field("path")
            for path in named.to_pylist():
                if not any(Path(os.path.realpath(path or "")).is_relative_to(store) for store in own):
                    raise InputError(f"{source}: split {split} only names the picture {path!r}; save it with its bytes")


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


def batches(rows: Any, size: int) -> Iterator[Mapping[str, Any]]:
    """Read a split's rows, so many at a time; raise InputError for a picture that cannot be decoded, or is huge."""
    from PIL.Image import DecompressionBombError

    found = rows.iter(batch_size=size)
    while True:
        try:
            batch = next(found, None)
        except (OSError, SyntaxError, ValueError, DecompressionBombError) as error:
            raise InputError(f"a picture of the data set cannot be read ({error}); leave it out") from error
        if batch is None:
            return
        yield batch


def _splits(folder: Path) -> list[str]:
    if not (folder / SPLITS).is_file():
        raise InputError(f"{folder}: no saved data set; fetch it first")
    try:
        splits: list[str] = [str(split) for split in parse_json(read_small(folder / SPLITS))["splits"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SPLITS}: does not list the splits ({error}); fetch it again") from error
    return splits
