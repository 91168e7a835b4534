"""The order and the names that layers are shown by."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NUMBER = re.compile(r"\d+")
ANY = "*"  # in the place of a number
ONCE = "others"


class Panel(NamedTuple):
    """The layers of one kind in the order of their depth, each with its tick's label."""

    title: str
    layers: list[str]
    ticks: list[str]


def by_depth(names: Iterable[str]) -> list[str]:
    """Sort parameters by name, numbers in names by value: block 2 comes before block 10."""
    return sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def short_names(names: Sequence[str]) -> list[str]:
    """Drop the leading words that all parameters share, and the word `weight` at the end."""
    words = [name.split(".") for name in names]
    shared = 0
    while all(len(w) > shared + 1 for w in words) and len({w[shared] for w in words}) == 1:
        shared += 1
    return [".".join(w[shared:]).removesuffix(".weight").replace("transformer.resblocks", "block") for w in words]


def panels(names: Sequence[str]) -> list[Panel]:
    """Put layers whose names differ only by numbers into one panel, and all others into a last one."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, short in zip(names, short_names(names), strict=True):
        kinds.setdefault(NUMBER.sub(ANY, short), []).append((name, short))
    alone = [members[0] for members in kinds.values() if len(members) == 1]
    found = [
        Panel(
            kind.rsplit(f"{ANY}.", 1)[-1],
            [name for name, _ in members],
            [".".join(NUMBER.findall(short)) for _, short in members],
        )
        for kind, members in kinds.items()
        if len(members) > 1
    ]
    others = [Panel(ONCE, [name for name, _ in alone], [short for _, short in alone])] if alone else []
    return found + others
