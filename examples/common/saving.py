"""Save a task's splits the way the `datasets` library saves them, with a hash of what was drawn."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, Features, NamedSplit, disable_progress_bars


@dataclass(frozen=True)
class Split:
    """A split's columns, and a hash of their content."""

    columns: Mapping[str, list[Any]]
    digest: str


def save_splits(splits: Mapping[str, Split], features: Features, out: Path, digests: str) -> None:
    """Write the splits to `out`, and each one's hash to the file called `digests` in it."""
    disable_progress_bars()
    DatasetDict({name: _dataset(name, split, features) for name, split in splits.items()}).save_to_disk(out)
    hashes = {name: split.digest for name, split in splits.items()}
    (out / digests).write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")


def _dataset(name: str, split: Split, features: Features) -> Dataset:
    """Build the split with a fingerprint of its content, as the library's own is not a promise of equal bytes."""
    dataset = Dataset.from_dict(dict(split.columns), features=features)
    return Dataset(dataset.data, info=dataset.info, split=NamedSplit(name), fingerprint=split.digest)
