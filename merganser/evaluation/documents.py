"""Documents of a group of data sets, as one: their columns differ, so that each row is JSON, with whose it is."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

MEMBER, DOCUMENT = "member", "document"  # the columns


def of_group(members: Mapping[str, Iterable[Mapping[str, Any]]]) -> Any:
    """Put the data sets of each member together by split, one after another.

    Returns a `datasets.DatasetDict` with the columns `member` and `document`. Raises TypeError, naming the member,
    where a row holds what is no text, number or list.
    """
    from datasets import Dataset, DatasetDict

    columns: dict[str, dict[str, list[str]]] = {}
    for member, data_sets in members.items():
        for split, rows in ((split, rows) for splits in data_sets for split, rows in splits.items()):
            try:
                documents = to_json(rows)
            except TypeError as error:
                raise TypeError(f"{member}, split {split}: {error}") from error
            own = columns.setdefault(split, {MEMBER: [], DOCUMENT: []})
            own[MEMBER] += [member] * len(documents)
            own[DOCUMENT] += documents
    return DatasetDict({split: Dataset.from_dict(own) for split, own in columns.items()})


def to_json(rows: Iterable[Any]) -> list[str]:
    """Write each row as JSON; raise TypeError where one holds what is no text, number or list."""
    return [json.dumps(row) for row in rows]
