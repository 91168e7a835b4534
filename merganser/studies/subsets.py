"""Which subsets of the tasks are merged: the same for every entry, so that their results are pairs."""

import hashlib
from collections.abc import Collection
from itertools import combinations
from math import comb

import numpy as np

Subset = tuple[str, ...]


def subset_sizes(tasks: int) -> range:
    """Return the sizes of the subsets of so many tasks that are merged: from two to all."""
    return range(min(2, tasks), tasks + 1)


def all_subsets(tasks: Collection[str], most: int, seed: int) -> list[Subset]:
    """Draw at most so many subsets of each size from two tasks to all, the sizes in their order."""
    return [subset for size in subset_sizes(len(tasks)) for subset in draw_subsets(tasks, size, most, seed)]


def draw_subsets(tasks: Collection[str], size: int, most: int, seed: int) -> list[Subset]:
    """Draw distinct subsets of one size, all of them where there are no more than `most`.

    The draw depends on the seed, the size and the tasks' names, not on their order; more subsets begin with the same.
    """
    names = sorted(tasks)
    if comb(len(names), size) <= most:
        return list(combinations(names, size))
    generator = np.random.default_rng([seed, size])
    drawn: dict[Subset, None] = {}
    while len(drawn) < most:
        chosen = sorted(generator.permutation(len(names))[:size])
        drawn[tuple(names[i] for i in chosen)] = None
    return list(drawn)


def file_name(subset: Subset) -> str:
    """Name a subset's file: its size, and a digest, as the names together could be longer than a file's name may be."""
    return f"{len(subset)}-{hashlib.sha256(' '.join(subset).encode()).hexdigest()[:12]}.json"
