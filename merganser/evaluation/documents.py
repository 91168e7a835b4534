"""The documents of a group of data sets as one data set: each row has its data set's name and its content as JSON."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from merganser.evaluation.data_sets import opens_files

MEMBER, DOCUMENT = "member", "document"  # the columns


def of_group(members: Mapping[str, Iterable[Mapping[str, Any]]]) -> Any:
    """Concatenate each member's data sets by split.

    Returns a `datasets.DatasetDict` with the columns `member` and `document`. Raises TypeError, naming the member,
    for values other than texts, numbers and lists.
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
    """Write each row as JSON; raise TypeError for values other than texts, numbers and lists.

    A column that would decode files is refused before it decodes any.
    """
    for column, feature in getattr(rows, "features", {}).items():
        if opens_files(feature):
            raise TypeError(f"the column {column!r} is {feature}")
    return [json.dumps(row) for row in rows]
