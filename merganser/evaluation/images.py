"""Image data sets as `datasets` saves them."""

from collections.abc import Iterator, Mapping
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
        if isinstance(image, Image) and any(_lacks(chunk) for chunk in rows.data.column("image").chunks):
            raise InputError(
                f"{source}: split {split}: the column 'image' has examples without a picture; leave them out"
            )


def _lacks(pictures: Any) -> bool:
    """Tell whether an Arrow array of pictures has one that has neither bytes nor a name."""
    from pyarrow import compute  # type: ignore[import-untyped]

    without = compute.and_(pictures.field("bytes").is_null(), pictures.field("path").is_null())
    return pictures.null_count > 0 or bool(compute.any(without).as_py())


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
