"""What a checkpoint of transformers holds beside its parameters: second names of tied weights, and constants.

A tied weight that is merged under two names, with random masks or decompositions of each, comes apart.
"""

import torch
from torch import Tensor

from merganser.checkpoints.architecture import STORED_TODAY, Architecture, is_buffer, known_ties
from merganser.checkpoints.tensors import StoredCheckpoint

PIECE = 2**20  # values compared at a time: most tensors that differ do so in the first


def surplus_of(checkpoint: StoredCheckpoint, architecture: Architecture) -> dict[str, str | None]:
    """List the tensors that are not parameters of their own, with the name that a second name stands for.

    A known second name is one only where its values are the first one's, bit for bit, and the configuration does not
    say that they are untied, nor, where it is silent, its class; two names of torch weights are one where they share
    their memory.
    """
    if architecture.model_type is None:
        return {}
    aliases = _second_names(checkpoint, architecture.says_tied)
    if aliases and architecture.tied is False:
        aliases = _second_names(checkpoint, tied=False)
    names = () if architecture.model_type in STORED_TODAY else checkpoint.names
    return aliases | {name: None for name in names if is_buffer(name, checkpoint.spec(name))}


def _second_names(checkpoint: StoredCheckpoint, tied: bool | None) -> dict[str, str | None]:
    known = known_ties(frozenset(checkpoint.names), tied)
    sources = known if tied is False else _shared(checkpoint, set(known.values())) | known
    return {alias: source for alias, source in sources.items() if are_equal(checkpoint, alias, source)}


def are_equal(checkpoint: StoredCheckpoint, first: str, second: str) -> bool:
    """Tell whether two tensors of a checkpoint are the same, bit for bit; of two that differ, little is read."""
    if checkpoint.spec(first) != checkpoint.spec(second):
        return False
    count = torch.Size(checkpoint.spec(first).shape).numel()
    pieces = range(0, count, PIECE)
    return all(
        torch.equal(_bits(checkpoint, first, start, count), _bits(checkpoint, second, start, count)) for start in pieces
    )


def _bits(checkpoint: StoredCheckpoint, name: str, start: int, count: int) -> Tensor:
    size = min(PIECE, count - start)
    return checkpoint.read_piece(name, start, (size,)).reshape(-1).view(torch.uint8)


def _shared(checkpoint: StoredCheckpoint, kept: set[str]) -> dict[str, str]:
    """List the names of torch weights that share their memory with another one, and that other one."""
    first: dict[object, str] = {}
    found = {}
    for name in sorted(checkpoint.names, key=lambda name: (name not in kept, name)):
        memory = checkpoint.memory(name)
        if memory is not None and first.setdefault(memory, name) != name and name not in kept:
            found[name] = first[memory]
    return found
