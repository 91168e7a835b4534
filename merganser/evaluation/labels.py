"""The `label` column of data sets of classes: their numbers, or words that the entry lists in the classes' order."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from merganser.errors import InputError

WORDS = ("string", "large_string")  # types of a column of words
UNLABELLED = (None, -1)  # what stands where an example has no label


def check_labels(
    splits: Mapping[str, Any],
    classes: Sequence[str] | None,
    source: Path,
    words: Sequence[str] | None = None,
    *,
    some_unlabelled: bool = False,
) -> None:
    """Refuse a data set without a `label` column whose classes have names, or that does not fit those declared.

    `words`: those of the column that stand for the classes, in their order; `some_unlabelled`: rows may lack a label.
    """
    from datasets import ClassLabel

    without = UNLABELLED if some_unlabelled else ()
    for split, rows in splits.items():
        if "label" not in rows.column_names:
            raise InputError(f"{source}: split {split} has no column 'label'; it has {rows.column_names}")
        feature = rows.features["label"]
        kind = getattr(feature, "dtype", feature)
        if words is not None and kind not in WORDS:
            raise InputError(f"{source}: split {split}: the labels are {kind}, not words; leave data.labels out")
        if words is not None:
            if strange := _strange(rows, {*words, *without}):
                raise InputError(
                    f"{source}: split {split} has the label {strange[0]!r}, which data.labels does not list"
                )
        elif isinstance(feature, ClassLabel):
            if classes is not None and len(classes) != feature.num_classes:
                counts = f"{feature.num_classes} classes, data.classes names {len(classes)}"
                raise InputError(f"{source}: split {split} has {counts}; name them in the order of the labels")
        elif classes is None:
            reason = f"{source}: split {split}: the label column has no class names"
            raise InputError(f"{reason}; cast it to ClassLabel, or name them by data.classes")
        elif strange := _strange(rows, {*range(len(classes)), *without}):
            raise InputError(f"{source}: split {split} has the label {strange[0]!r}, data.classes names {len(classes)}")


def label_names(features: Mapping[str, Any], classes: Sequence[str] | None) -> list[str]:
    """Return the names declared, else those of the data set."""
    return list(features["label"].names if classes is None else classes)


def labelled(rows: Any) -> Any:
    """Return the rows of a split that have a label.

    >>> from datasets import Dataset
    >>> labelled(Dataset.from_dict({"label": [1, -1, 0, None]}))["label"][:]
    [1, 0]
    """
    kept = [number for number, label in enumerate(rows["label"]) if label not in UNLABELLED]
    return rows if len(kept) == len(rows) else rows.select(kept)


def _strange(rows: Any, known: Collection[Any]) -> list[Any]:
    """List labels that are unknown, or neither whole numbers nor words; booleans count as 0 and 1."""
    found = rows.data.column("label").unique().to_pylist()
    return [label for label in found if label not in known or isinstance(label, float)]
