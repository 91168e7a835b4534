"""Which file of a sharded checkpoint each tensor goes into."""

import re
from collections.abc import Mapping

from merganser.checkpoints.reading import shard_names, written_as
from merganser.checkpoints.tensors import IN_MODULE, Checkpoint, Spec
from merganser.checkpoints.weight_files import MODEL
from merganser.errors import InputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]I?)?B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Read a size such as 5GB or 500MiB in bytes; raise InputError for anything else."""
    match = SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * UNITS[(match[2] or "").upper()]) if match else 0
    if size < 1:
        raise InputError(f"--max-shard-size: expected a size such as 5GB or 500MB, got {text!r}")
    return size


def shards_like(checkpoint: Checkpoint) -> dict[str, str]:
    """Name the shard of each tensor as a checkpoint has it, all of them safetensors; none where it is one file."""
    files = shard_names(checkpoint) or {}
    used = sorted(set(files.values()))
    if len(used) < 2:
        return {}
    stem = written_as(checkpoint)
    return {name: _shard(stem, used.index(file) + 1, len(used)) for name, file in files.items()}


def shards_of(specs: Mapping[str, Spec], size: int, stem: str = MODEL) -> dict[str, str]:
    """Divide tensors in the order of their names into shards of at most `size` bytes; none where one file is enough.

    A tensor that is larger has a shard for itself.
    """
    numbers: dict[str, int] = {}
    number, held = 1, 0
    for name in sorted(name for name in specs if IN_MODULE not in name):
        if held and held + specs[name].nbytes > size:
            number, held = number + 1, 0
        numbers[name], held = number, held + specs[name].nbytes
    return {name: _shard(stem, n, number) for name, n in numbers.items()} if number > 1 else {}


def _shard(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}.safetensors"
