"""Columns of a data set under the names that the task's kind reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError, did_you_mean


def rename_columns(splits: Any, columns: Mapping[str, str], source: Path) -> Any:
    """Return the data set with its columns renamed: `columns` maps the new names to the old ones.

    A column that had a new name already is dropped. Raises InputError for an old name that a split does not have.
    """
    changed = {new: old for new, old in columns.items() if new != old}
    for split, rows in splits.items():
        for new, old in changed.items():
            if old not in rows.column_names:
                has = f"it has {rows.column_names}{did_you_mean(old, rows.column_names)}"
                raise InputError(f"data.columns.{new}: split {split} of {source} has no column {old!r}; {has}")
    if not changed:
        return splits
    dropped = [new for new in changed if new in splits.column_names[next(iter(splits))] and new not in changed.values()]
    return splits.remove_columns(dropped).rename_columns({old: new for new, old in changed.items()})
