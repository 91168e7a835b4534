"""Whether a task's head scores the classes that its data has."""

import re
from collections.abc import Collection, Sequence

from merganser.errors import InputError

UNNAMED = re.compile(r"LABEL_\d+")  # what transformers calls outputs that were given no names


def check_head(head: Sequence[str], classes: Sequence[str], masked: Collection[int], where: str) -> None:
    """Refuse a head with another number of outputs than there are classes, or with other names or another order.

    `head`: the names of its outputs; `masked`: those that are no class, by their numbers. Names that differ only in
    case and in what joins words are the same; a head without names of its own is taken at its number.
    """
    kept = [name for number, name in enumerate(head) if number not in masked]
    if len(kept) != len(classes):
        left = f" without {len(head) - len(kept)} masked" if masked else ""
        has = f"the head has {len(head)} outputs{left}"
        raise InputError(f"{where}: {has}, the data {len(classes)} classes ({_list(classes)}); set data.masked")
    if all(UNNAMED.fullmatch(name) for name in kept):
        return
    if [_plain(name) for name in kept] != [_plain(name) for name in classes]:
        same = sorted(map(_plain, kept)) == sorted(map(_plain, classes))
        advice = "reorder the labels of the data" if same else "if they mean the same, give data.classes the head's"
        how = "in another order" if same else "other classes"
        raise InputError(f"{where}: the head has {how}: {_list(kept)}; the data has {_list(classes)}; {advice}")


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name).strip().casefold()


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
