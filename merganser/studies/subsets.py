"""Choose subsets and orders of the tasks, the same for every entry, so that results can be paired."""

from collections.abc import Collection
from itertools import combinations
from math import comb, factorial

import numpy as np

Subset = tuple[str, ...]


def subset_sizes(tasks: int) -> range:
    """Return the sizes of the subsets, from two to all tasks."""
    return range(min(2, tasks), tasks + 1)


def all_subsets(tasks: Collection[str], most: int, seed: int) -> list[Subset]:
    """Draw at most `most` subsets of each size, by ascending size."""
    return [subset for size in subset_sizes(len(tasks)) for subset in draw_subsets(tasks, size, most, seed)]


def draw_subsets(tasks: Collection[str], size: int, most: int, seed: int) -> list[Subset]:
    """Draw distinct subsets of one size, all of them if there are at most `most`.

    The draw depends on the seed, the size and the tasks' names, not on their order; a larger `most` extends the list.
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


def task_orders(tasks: Collection[str], most: int, seed: int) -> list[Subset]:
    """Return at most `most` distinct orders of the tasks: the given one, then drawn ones.

    The draw depends on the seed and the tasks' names; a larger `most` extends the list.
    """
    names, orders = sorted(tasks), {tuple(tasks): None}
    generator = np.random.default_rng(seed)
    while len(orders) < min(most, factorial(len(names))):
        orders[tuple(names[i] for i in generator.permutation(len(names)))] = None
    return list(orders)


def first_tasks(order: Subset) -> list[Subset]:
    """Return the first task of an order, the first two, and so on to all.

    >>> first_tasks(("b", "a"))
    [('b',), ('b', 'a')]
    """
    return [order[:count] for count in range(1, len(order) + 1)]
