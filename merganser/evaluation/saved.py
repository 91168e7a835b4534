"""Data sets as `datasets` saves them: a folder a split."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from merganser.errors import InputError, refusing
from merganser.evaluation.arrow_files import check_arrow_files, check_values
from merganser.evaluation.named_files import check_named_files
from merganser.limits import check_plain, parse_json, read_small

SPLITS = "dataset_dict.json"
INFORMATION = "dataset_info.json"  # of a split: its columns and their features
STATE = "state.json"  # of a split: its files
INFORMATION_LIMIT = 2**25  # bytes: it names the classes, and the files that it was made of


def check_saved(folder: Path) -> None:
    """Refuse a folder that is not a saved data set."""
    if not (folder / SPLITS).exists():
        raise InputError(f"{folder}: no saved data set; expected a folder written by DatasetDict.save_to_disk")


def read_headers(folder: Path) -> dict[str, Any]:
    """Return each split of a saved data set without its rows, from what its header says of the columns.

    Raises InputError when the data set is not whole.
    """
    from datasets import Dataset, DatasetInfo

    check_saved(folder)
    headers = {}
    for split in _splits(folder):
        where = folder / split / INFORMATION
        # of a file that is cut off or edited, `datasets` raises a dozen kinds
        with refusing(f"{where}: does not say the columns", "save the data set again", Exception):
            features = DatasetInfo.from_dict(_information(folder / split)).features
            table = features.arrow_schema.empty_table()
            # a fingerprint takes longer than all else, and nothing is made of no rows
            headers[split] = Dataset(table, info=DatasetInfo(features=features), fingerprint=split)
    return headers


def _information(split: Path) -> dict[str, Any]:
    return dict(parse_json(read_small(split / INFORMATION, INFORMATION_LIMIT)))


def load_saved(folder: Path) -> Any:
    """Open a saved data set or one of its splits, memory-mapped; raise InputError when it is not whole."""
    from datasets import load_from_disk

    # of a file that is cut off or edited, `datasets` and Arrow raise a dozen kinds; an empty split is an IndexError
    with refusing(f"{folder}: not a whole saved data set, or an empty split", "fetch it again", Exception):
        splits = [folder / split for split in _splits(folder)] if (folder / SPLITS).exists() else [folder]
        check_arrow_files([split / name for split in splits for name in _files(split)])
        for split in splits:
            _information(split)  # `datasets` would read one of any size
        return load_from_disk(folder).with_format(None)  # a format of the file's own would convert what is read


def _files(split: Path) -> list[str]:
    """Name the files of a split; refuse those that lie elsewhere, or come twice: `datasets` would follow them."""
    files = [str(file["filename"]) for file in parse_json(read_small(split / STATE))["_data_files"]]
    for file in files:
        check_plain(file, split / STATE)
    if len(set(files)) < len(files):
        raise InputError(f"{split / STATE}: names a file twice; save the data set again")
    return files


def check_content(splits: Any, source: Path, stores: Collection[str | Path] = ()) -> None:
    """Refuse damaged values, and files that are only named; `stores`: folders that named files may lie in."""
    for rows in splits.values():
        check_values(rows.data.table, source)
    check_named_files(splits, source, stores)


def open_split(
    folder: Path, split: str, where: str = "evaluation.split", columns: Collection[str] | None = None
) -> Any:
    """Open one split of a saved data set, those of some columns that it has; `where` the split is declared."""
    splits = _splits(folder)
    if split not in splits:
        raise InputError(f"{where}: {folder} has no split {split!r}; it has {', '.join(splits)}")
    rows = chosen(load_saved(folder / split), columns)
    check_content({split: rows}, folder)
    return rows


def chosen(rows: Any, columns: Collection[str] | None) -> Any:
    """Return a split with those of some columns that it has; with all of them for None."""
    return rows if columns is None else rows.select_columns([name for name in rows.column_names if name in columns])


def features_of(folder: Path) -> Any:
    """Return the features of a saved data set's columns; raise InputError when there is no data set."""
    return next(iter(read_headers(folder).values())).features


def _splits(folder: Path) -> list[str]:
    if not (folder / SPLITS).exists():
        raise InputError(f"{folder}: no saved data set; fetch it first")
    with refusing(f"{folder / SPLITS}: does not list the splits", "fetch it again"):
        splits: list[str] = [str(split) for split in parse_json(read_small(folder / SPLITS))["splits"]]
    for split in splits:
        check_plain(split, folder / SPLITS)
    return splits
