"""Image data sets as `datasets` saves them."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError


def check_images(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse a data set without an `image` column of pictures or uint8 arrays."""
    from datasets import Array3D, Image

    for split, rows in splits.items():
        if "image" not in rows.column_names:
            raise InputError(f"{source}: split {split} has no column 'image'; it has {rows.column_names}")
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
        columns = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
        for chunk in (chunk for column in columns for chunk in rows.data.column(column).chunks):
            named = chunk.filter(chunk.field("bytes").is_null()).field("path")
            for path in named.to_pylist():
                if not any(Path(os.path.realpath(path or "")).is_relative_to(store) for store in own):
                    raise InputError(f"{source}: split {split} only names the picture {path!r}; save it with its bytes")


def batches(rows: Any, size: int) -> Iterator[Mapping[str, Any]]:
    """Read a split's rows, so many at a time: pictures as PIL images, or as uint8 arrays where they are saved so.

    Raises InputError for a picture that cannot be decoded, or is huge.
    """
    from datasets import Image
    from PIL.Image import DecompressionBombError

    if not isinstance(rows.features["image"], Image):  # plain arrays would come as nested lists, a hundred times slower
        rows = rows.with_format("numpy", columns=["image"], output_all_columns=True, dtype="uint8")
    found = rows.iter(batch_size=size)
    while True:
        try:
            batch = next(found, None)
        except (OSError, SyntaxError, ValueError, DecompressionBombError) as error:
            raise InputError(f"a picture of the data set cannot be read ({error}); leave it out") from error
        if batch is None:
            return
        yield batch
