"""The `label` column of data sets of classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merganser.errors import InputError


def check_labels(splits: Mapping[str, Any], classes: Sequence[str] | None, source: Path) -> None:
    """Refuse a data set without a `label` column whose classes have names, or that does not fit those declared."""
    from datasets import ClassLabel

    for split, rows in splits.items():
        if "label" not in rows.column_names:
            raise InputError(f"{source}: split {split} has no column 'label'; it has {rows.column_names}")
        feature = rows.features["label"]
        if isinstance(feature, ClassLabel):
            if classes is not None and len(classes) != feature.num_classes:
                counts = f"{feature.num_classes} classes, data.classes names {len(classes)}"
                raise InputError(f"{source}: split {split} has {counts}; name them in the order of the labels")
        elif classes is None:
            reason = f"{source}: split {split}: the label column has no class names"
            raise InputError(f"{reason}; cast it to ClassLabel, or name them by data.classes")
        elif strange := _outside(rows, len(classes)):
            raise InputError(f"{source}: split {split} has the label {strange[0]!r}, data.classes names {len(classes)}")


def label_names(features: Mapping[str, Any], classes: Sequence[str] | None) -> list[str]:
    """Return the names declared, else those of the data set."""
    return list(features["label"].names if classes is None else classes)


def _outside(rows: Any, count: int) -> list[Any]:
    """List labels that are no class's number; booleans count as 0 and 1."""
    found = rows.data.column("label").unique().to_pylist()
    return [label for label in found if not isinstance(label, int) or not 0 <= int(label) < count]
