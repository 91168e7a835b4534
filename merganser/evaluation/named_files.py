"""Data sets that name files or addresses: pictures, sounds and the like are read from the data set alone."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from merganser.errors import InputError


def check_named_files(splits: Mapping[str, Any], source: Path, stores: Collection[str | Path] = ()) -> None:
    """Refuse a data set that names files or addresses where `datasets` would open them, in whatever column and depth.

    `stores`: folders in which a named file may lie, those into which the data set was downloaded.
    """
    own = [os.path.realpath(store) for store in stores]
    for split, rows in splits.items():
        for column, feature in rows.features.items():
            for chunk in rows.data.column(column).chunks:
                for path in _named(feature, chunk, f"{source}: split {split}: the column {column!r}"):
                    if not any(Path(os.path.realpath(path)).is_relative_to(store) for store in own):
                        what = f"split {split}: the column {column!r} only names the file {path!r}"
                        raise InputError(f"{source}: {what}; save the data set with the file's bytes")


def opens_files(feature: Any) -> bool:
    """Tell whether a value of a feature, or one within it, is decoded from bytes or from a file that it names."""
    if isinstance(feature, Mapping):
        return any(opens_files(inner) for inner in feature.values())
    if isinstance(feature, list | tuple):
        return any(opens_files(inner) for inner in feature)
    inner = getattr(feature, "feature", None)  # of the lists
    if inner is not None:
        return opens_files(inner)
    from datasets import Json

    return hasattr(feature, "decode_example") and not isinstance(feature, Json)


def _named(feature: Any, array: Any, where: str) -> Iterator[str]:
    """Give the names of files without bytes beside them in an Arrow array, down to its innermost values."""
    import pyarrow  # type: ignore[import-untyped]

    if not opens_files(feature):
        return
    if isinstance(feature, Mapping):
        for key, inner in feature.items():
            yield from _named(inner, array.field(key), where)
    elif isinstance(feature, list | tuple):
        yield from _named(feature[0], array.flatten(), where)
    elif getattr(feature, "feature", None) is not None:
        yield from _named(feature.feature, array.flatten(), where)
    else:
        kind = array.type
        if not pyarrow.types.is_struct(kind) or {kind.field(i).name for i in range(kind.num_fields)} != {
            "bytes",
            "path",
        }:
            raise InputError(f"{where} is of a kind that is not read, {type(feature).__name__}; leave it out")
        named = array.filter(array.field("bytes").is_null()).field("path")
        yield from (str(path) for path in named.drop_null().to_pylist())
