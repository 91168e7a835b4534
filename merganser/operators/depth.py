"""How deep a parameter lies in its network, by its name."""

import re
from collections.abc import Iterable

BLOCK = re.compile(r"(?:^|\.)(\d+)(?=\.)")  # the first number between dots; a name may begin with it


def block_of(name: str) -> tuple[str, int] | None:
    """Return the stack and the place of the block that a parameter is in; None outside blocks.

    >>> block_of("visual.transformer.resblocks.11.mlp.c_fc.weight"), block_of("visual.proj")
    (('visual.transformer.resblocks', 11), None)
    """
    match = BLOCK.search(name)
    return (name[: match.start()], int(match[1])) if match else None


def depths(names: Iterable[str]) -> dict[str, float]:
    """Return how deep each parameter is: 0 in the first block of its stack and outside blocks, 1 in the last block.

    >>> depths(["h.0.w", "h.1.w", "h.2.w", "norm.w"])
    {'h.0.w': 0.0, 'h.1.w': 0.5, 'h.2.w': 1.0, 'norm.w': 0.0}
    """
    blocks = {name: block_of(name) for name in names}
    last: dict[str, int] = {}
    for stack, place in filter(None, blocks.values()):
        last[stack] = max(place, last.get(stack, 0))
    return {name: block[1] / last[block[0]] if block and last[block[0]] else 0.0 for name, block in blocks.items()}
