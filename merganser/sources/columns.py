"""Columns of a data set under the names that the task's kind reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError, did_you_mean


def rename_columns(splits: Any, columns: Mapping[str, str], source: Path) -> Any:
    """Return the splits of a data set, or their headers, with columns renamed: `columns` maps new names to old ones.

    A column that had a new name already is dropped. Raises InputError for an old name that a split does not have.
    """
    changed = {new: old for new, old in columns.items() if new != old}
    for split, rows in splits.items():
        for new, old in changed.items():
            if old not in rows.column_names:
                has = f"it has {rows.column_names}{did_you_mean(old, rows.column_names)}"
                raise InputError(f"data.columns.{new}: split {split} of {source} has no column {old!r}; {has}")
    return type(splits)({split: _renamed(rows, changed) for split, rows in splits.items()}) if changed else splits


def _renamed(rows: Any, changed: Mapping[str, str]) -> Any:
    dropped = [new for new in changed if new in rows.column_names and new not in changed.values()]
    return rows.remove_columns(dropped).rename_columns({old: new for new, old in changed.items()})
