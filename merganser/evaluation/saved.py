"""Data sets as `datasets` saves them: a folder a split."""

from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.limits import check_plain, parse_json, read_small

SPLITS = "dataset_dict.json"
INFORMATION = "dataset_info.json"  # of a split: its columns and their features


def check_saved(folder: Path) -> None:
    """Refuse a folder that is no saved data set."""
    if not (folder / SPLITS).is_file():
        raise InputError(f"{folder}: no saved data set; expected a folder written by DatasetDict.save_to_disk")


def read_headers(folder: Path) -> dict[str, Any]:
    """Return each split of a saved data set without its rows, from what its header says of the columns.

    Raises InputError when the data set is not whole.
    """
    from datasets import Dataset, DatasetInfo

    check_saved(folder)
    headers = {}
    for split in _splits(folder):
        check_plain(split, folder / SPLITS)
        try:
            features = DatasetInfo.from_directory(str(folder / split)).features
            table = features.arrow_schema.empty_table()
            headers[split] = Dataset(table, info=DatasetInfo(features=features))
        except Exception as error:  # of a file that is cut off or edited, `datasets` raises a dozen kinds
            where = folder / split / INFORMATION
            raise InputError(f"{where}: does not say the columns ({error}); save the data set again") from error
    return headers


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


def open_split(folder: Path, split: str, where: str = "evaluation.split") -> Any:
    """Open one split of a saved data set; `where` the split is declared."""
    splits = _splits(folder)
    if split not in splits:
        raise InputError(f"{where}: {folder} has no split {split!r}; it has {', '.join(splits)}")
    return load_saved(folder / split)


def features_of(folder: Path) -> Any:
    """Return the features of a saved data set's columns; raise InputError when there is no data set."""
    return load_saved(folder / _splits(folder)[0]).features


def _splits(folder: Path) -> list[str]:
    if not (folder / SPLITS).is_file():
        raise InputError(f"{folder}: no saved data set; fetch it first")
    try:
        splits: list[str] = [str(split) for split in parse_json(read_small(folder / SPLITS))["splits"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SPLITS}: does not list the splits ({error}); fetch it again") from error
    return splits
