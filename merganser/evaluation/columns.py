"""Columns of image data sets as `datasets` saves them, and of labels.

Labels are numbers, or words that the entry lists in the order of the classes.
"""

import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from merganser.errors import InputError, refusing

WORDS = ("string", "large_string")  # types of a column of words
NUMBERED = ("int", "uint", "bool", "null")  # how the names of types begin whose values may number classes, or be none
RENAMED = "; data.columns says which one it is"  # of a column that a data set may call otherwise
UNLABELLED = (None, -1)  # what stands where an example has no label


def check_column(rows: Any, name: str, where: str, remedy: str = "") -> None:
    """Refuse a split without a column; `where`: the split in words, `remedy`: the end of the message."""
    if name not in rows.column_names:
        raise InputError(f"{where} has no column {name!r}; it has {rows.column_names}{remedy}")


def check_labels(
    splits: Mapping[str, Any],
    classes: Sequence[str] | None,
    source: Path,
    words: Sequence[str] | None = None,
    *,
    some_unlabelled: bool = False,
) -> None:
    """Refuse a data set without a `label` column with class names, or with others than those declared.

    `words`: the column's words for the classes, in their order; `some_unlabelled`: rows may lack a label.
    """
    from datasets import ClassLabel

    without = UNLABELLED if some_unlabelled else ()
    for split, rows in splits.items():
        check_column(rows, "label", f"{source}: split {split}")
        feature = rows.features["label"]
        kind = type_of(feature)
        if words is not None and kind not in WORDS:
            raise InputError(f"{source}: split {split}: the labels are {kind}, not words; leave data.labels out")
        if words is not None:
            if strange := _strange(rows, {*words, *without}):
                raise InputError(
                    f"{source}: split {split} has the label {strange[0]!r}, which data.labels does not list"
                )
            check_order(words, classes or (), "data.labels", "data.classes")
        elif isinstance(feature, ClassLabel):
            if classes is not None and len(classes) != feature.num_classes:
                counts = f"{feature.num_classes} classes, data.classes names {len(classes)}"
                raise InputError(f"{source}: split {split} has {counts}; name them in the order of the labels")
            check_order(feature.names, classes or (), f"{source}: split {split}", "data.classes")
        elif classes is None:
            reason = f"{source}: split {split}: the label column has no class names"
            raise InputError(f"{reason}; cast it to ClassLabel, or name them by data.classes")
        elif not str(kind).startswith(NUMBERED):
            raise InputError(
                f"{source}: split {split}: the labels are {kind}, not whole numbers; cast them to ClassLabel"
            )
        elif strange := _strange(rows, {*range(len(classes)), *without}):
            raise InputError(f"{source}: split {split} has the label {strange[0]!r}, data.classes names {len(classes)}")
    _check_alike(splits, source)


def type_of(feature: Any) -> str:
    """Return the type of a column's values, such as int64, or the whole type of lists, arrays and structs.

    >>> from datasets import Array2D, List, Value
    >>> type_of(Value("int64")), type_of(List(Value("string")))
    ('int64', "List(Value('string'))")
    """
    from datasets import ClassLabel, Value

    return str(feature.dtype if isinstance(feature, ClassLabel | Value) else feature)


def check_order(names: Sequence[str], declared: Sequence[str], where: str, key: str) -> None:
    """Refuse declared label names if one is the data's own name of another label.

    `names`: the data's, by label, perhaps their numbers; `key`: the key that declares the others. Raises
    InputError.
    """
    if list(names) == [str(label) for label in range(len(names))]:
        return
    places = {plain(name): label for label, name in enumerate(names)}
    for label, (own, name) in enumerate(zip(names, declared, strict=False)):
        if plain(name) != plain(own) and plain(name) in places:
            is_other = f"which is the label {places[plain(name)]} there"
            reason = f"{where}: the label {label} is {own!r}, and {key} names it {name!r}, {is_other}"
            raise InputError(f"{reason}; declare the names in the order of the data's labels")


def _check_alike(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse splits whose labels have different names, or in a different order."""
    named = {split: list(getattr(rows.features["label"], "names", ())) for split, rows in splits.items()}
    first = next(iter(named), "")
    for split, names in named.items():
        if names != named[first]:
            both = f"{', '.join(names)} in the split {split}, and {', '.join(named[first])} in {first}"
            raise InputError(
                f"{source}: the classes are {both}; cast the label columns of all splits to one ClassLabel"
            )


def plain(name: str) -> str:
    """Return a class name in lower case, with spaces for all characters that join words.

    >>> plain("Not_Entailed")
    'not entailed'
    """
    return re.sub(r"[\W_]+", " ", name).strip().casefold()


def label_names(features: Mapping[str, Any], classes: Sequence[str] | None) -> list[str]:
    """Return the declared names, else those of the data set."""
    return list(features["label"].names if classes is None else classes)


def labelled(rows: Any) -> Any:
    """Return the rows of a split that have a label.

    >>> from datasets import Dataset
    >>> labelled(Dataset.from_dict({"label": [1, -1, 0, None]}))["label"][:]
    [1, 0]
    """
    kept = [number for number, label in enumerate(rows["label"]) if label not in UNLABELLED]
    return rows if len(kept) == len(rows) else rows.select(kept)


def class_numbers(labels: Sequence[Any], known: range, first: int = 0, remedy: str = "leave it out") -> list[int]:
    """Return labels as class numbers; raise InputError naming an example with an unknown label.

    `first`: the number of the first example.
    """
    for number, label in enumerate(labels, first):
        if label not in known:
            has = "no label" if label is None else f"the label {label}; the classes are 0 to {known[-1]}"
            raise InputError(f"example {number} has {has}; {remedy}")
    return [int(label) for label in labels]


def check_complete(rows: Any, names: Collection[str]) -> None:
    """Refuse rows without a value in one of these columns: null, not a number, an empty list, or a list with null."""
    for name in names:
        for number, value in enumerate(rows[name]):
            values = value if isinstance(value, list) else [value]
            if not values or any(each is None or (isinstance(each, float) and isnan(each)) for each in values):
                raise InputError(f"example {number} has nothing in the column {name!r}; leave it out")


def _strange(rows: Any, known: Collection[Any]) -> list[Any]:
    """List labels that are unknown, or neither whole numbers nor words; booleans count as 0 and 1."""
    labels = rows.data.column("label").unique().to_pylist()
    return [label for label in labels if label not in known or isinstance(label, float)]


def class_outputs(logits: Any, masked: Collection[int]) -> Any:
    """Return logits without the masked outputs, (B, C); `masked`: the numbers of outputs that stand for no class."""
    return logits[:, [number for number in range(logits.shape[1]) if number not in masked]]


MOST_PIXELS = 2**27  # of all pictures that are decoded at a time: 400 MB of them in colour
# Formats that PIL decodes itself, of the size in the header: on EPS it runs Ghostscript, ICO hides larger pictures.
FORMATS = {
    *("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "QOI", "SGI", "TGA"),
    *("TIFF", "WEBP"),
}


def check_images(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse a data set without an `image` column of pictures or uint8 arrays."""
    from datasets import Array3D, Image

    for split, rows in splits.items():
        check_column(rows, "image", f"{source}: split {split}")
        image = rows.features["image"]
        if not isinstance(image, Image) and not (isinstance(image, Array3D) and image.dtype == "uint8"):
            raise InputError(f"{source}: split {split}: image is {image}; expected Image or a uint8 Array3D")
        if isinstance(image, Image) and any(_lacks(chunk) for chunk in rows.data.column("image").chunks):
            raise InputError(
                f"{source}: split {split}: the column 'image' has examples without a picture; leave them out"
            )


def _lacks(pictures: Any) -> bool:
    """Tell whether a picture in an Arrow array has neither bytes nor a file name."""
    from pyarrow import compute

    without = compute.and_(pictures.field("bytes").is_null(), pictures.field("path").is_null())
    return pictures.null_count > 0 or bool(compute.any(without).as_py())


def batches(rows: Any, size: int) -> Iterator[Mapping[str, Any]]:
    """Yield a split's rows, so many at a time: pictures as PIL images, or as uint8 arrays if they are saved so.

    Large pictures come in smaller batches. Raises InputError for a picture that cannot be decoded, or is huge.
    """
    from datasets import Image

    if not isinstance(rows.features["image"], Image):  # plain arrays would come as nested lists, a hundred times slower
        plain = rows.with_format("numpy", columns=["image"], output_all_columns=True, dtype="uint8")
        yield from plain.iter(batch_size=size)
        return
    encoded = rows.select_columns(["image"]).cast_column("image", Image(decode=False))
    for start in range(0, len(rows), size):
        where = f"examples {start} to {min(start + size, len(rows)) - 1}"
        # of a file that is cut off or edited, PIL's formats raise a dozen kinds
        with refusing(f"{where}: a picture cannot be read", "leave it out", Exception):
            pixels = [_pixels(picture["bytes"]) for picture in encoded[start : start + size]["image"]]
            for first, last in _runs(pixels, MOST_PIXELS):
                yield rows[start + first : start + last]


def _pixels(encoded: bytes) -> int:
    """Return a picture's number of pixels, from its header; raise ValueError for an unsupported format."""
    from PIL.Image import open as open_picture

    with open_picture(io.BytesIO(encoded)) as picture:
        if picture.format not in FORMATS:
            raise ValueError(f"it is {picture.format}; save it as PNG or JPEG")
        return int(picture.width * picture.height)


def _runs(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Split a sequence into runs whose sizes add up to at most this, or of one item: each run's begin and end.

    >>> list(_runs([1, 1, 5, 1], most=3))
    [(0, 2), (2, 3), (3, 4)]
    """
    first, total = 0, 0
    for place, size in enumerate(sizes):
        if place > first and total + size > most:
            yield first, place
            first, total = place, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)
