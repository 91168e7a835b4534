"""See a task's checkpoint as its base has it: under the base's names, its linear maps the same way round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from merganser.checkpoints.architecture import is_buffer, known_ties
from merganser.checkpoints.kinds import ParameterRules, is_merged
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import View
from merganser.errors import InputError

SPELLINGS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))

Finder = Callable[[str], str | None]  # from the base's name to the task's


def matched(base: Checkpoint, tuned: Checkpoint, rules: ParameterRules, task: str) -> Checkpoint:
    """Return a task's checkpoint under the base's names.

    All its names may have one prefix more than the base's, or one less (`model.`, `bert.`), and LayerNorm's parameters
    the names of today or TensorFlow's. A second name of a tied
    weight, dropped when it was opened, is there again where the base has a weight of its own. Raises InputError where
    two prefixes fit.
    """
    merged = [name for name in base.names if is_merged(name, base.spec(name).dtype, rules)]
    find = _finder(base, tuned, merged, task)
    stored = {name: found for name in base.names if (found := find(name) or _tied(tuned, name)) is not None}
    others, ties = set(tuned.names) - set(stored.values()), known_ties(frozenset(tuned.names))
    stored |= {name: name for name in sorted(others) if not _is_surplus(base, tuned, name, rules, ties)}
    return View(tuned, stored, base.transposed & stored.keys(), tuned.dropped)


def _finder(base: Checkpoint, tuned: Checkpoint, merged: Sequence[str], task: str) -> Finder:
    """Choose how names are found: as they are, or under the one prefix where all merged ones are, or the most."""
    plain = partial(_found, tuned, "", "")
    missing = {name.split(".")[0]: name for name in merged if plain(name) is None}
    if not missing:
        return plain
    prefixes = dict.fromkeys(pair for name in missing.values() for pair in _prefixes(tuned, name))
    finders = {pair: partial(_found, tuned, *pair) for pair in prefixes}
    counts = {pair: _fits(tuned, merged, find) for pair, find in finders.items()}
    fitting = {pair: find for pair, find in finders.items() if counts[pair] == len(merged)}
    alike = {prefixes: finder for prefixes, finder in fitting.items() if _same_shapes(base, tuned, merged, finder)}
    chosen = alike or fitting
    if len(chosen) > 1:
        places = " and ".join(repr(less or more) for less, more in chosen)
        raise InputError(f"{task}: its names fit the base under {places}; take one off by `strip` in a pointer file")
    best = max(finders, key=lambda pair: counts[pair], default=("", ""))
    nearest = finders[best] if counts.get(best, 0) > _fits(tuned, merged, plain) else plain
    return next(iter(chosen.values()), nearest)


def _fits(tuned: Checkpoint, names: Sequence[str], find: Finder) -> int:
    """Count the names that are found."""
    return sum((find(name) or _tied(tuned, name)) is not None for name in names)


def _prefixes(tuned: Checkpoint, missing: str) -> Iterator[tuple[str, str]]:
    """List the prefixes that the base may have before a name and the task not, and the other way round."""
    parts = missing.split(".")
    for count in range(1, len(parts)):
        if any(spelled in tuned for spelled in _spellings(".".join(parts[count:]))):
            yield ".".join(parts[:count]) + ".", ""
    for spelled in _spellings(missing):
        yield from (("", name.removesuffix(spelled)) for name in tuned.names if name.endswith(f".{spelled}"))


def _found(tuned: Checkpoint, less: str, more: str, name: str) -> str | None:
    """Find a name of the base's without the prefix `less`, where it has that, and behind the prefix `more`."""
    return next((more + s.removeprefix(less) for s in _spellings(name) if more + s.removeprefix(less) in tuned), None)


def _spellings(name: str) -> Iterator[str]:
    """Give a name, and the one that it has in files that were made of TensorFlow's, or the other way round."""
    yield name
    for pair in SPELLINGS:
        for ours, theirs in (pair, pair[::-1]):
            if name.endswith(ours):
                yield name.removesuffix(ours) + theirs


def _tied(tuned: Checkpoint, name: str) -> str | None:
    """Return the name that a dropped second name stands for."""
    return tuned.dropped.get(name)


def _same_shapes(base: Checkpoint, tuned: Checkpoint, names: Sequence[str], find: Finder) -> bool:
    """Tell whether all parameters have as many values: which way round they are is seen later."""

    def sizes(checkpoint: Checkpoint, name: str) -> list[int]:
        return sorted(checkpoint.spec(name).shape)

    return all(sizes(base, name) == sizes(tuned, find(name) or _tied(tuned, name) or name) for name in names)


def _is_surplus(base: Checkpoint, tuned: Checkpoint, name: str, rules: ParameterRules, ties: Mapping[str, str]) -> bool:
    """Tell whether a tensor that the base lacks is a constant, or a second name of one that it has."""
    if name in base:
        return True  # there under another name
    spec, source = tuned.spec(name), ties.get(name)
    if source is None or source not in base or not is_merged(name, spec.dtype, rules):
        return is_buffer(name, spec)
    return spec == tuned.spec(source) and torch.equal(tuned.read(name), tuned.read(source))
