"""Where the labels of plotted points go: beside their points, never overlapping. All in points (1/72 inch)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

LINE = 9.5  # height of a label
GAP = 7.0  # between a point and its label
COLUMN = 12.0  # points closer than this stand in one column
STEPS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)  # lines a label may move by

Box = tuple[float, float, float, float]  # left, bottom, right, top


class Position(NamedTuple):
    """A label's left edge and the height of its middle."""

    x: float
    y: float


def place_labels(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    right: float,
    others: Sequence[tuple[float, float]] = (),
) -> list[Position]:
    """Place one label per point, as near as its neighbours and the right edge allow; return them in the points' order.

    `others`: points without a label, which no label may cover either.
    """
    targets = _targets(points)
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in [*points, *others]]
    positions: dict[int, Position] = {}
    for index in sorted(range(len(points)), key=lambda i: -targets[i]):
        positions[index] = _free_position(points[index], targets[index], widths[index], right, taken)
        taken.append(_box(positions[index], widths[index]))
    return [positions[index] for index in range(len(points))]


def _free_position(
    point: tuple[float, float], height: float, width: float, right: float, taken: Sequence[Box]
) -> Position:
    gap = GAP if abs(height - point[1]) < LINE / 2 else 3 * GAP  # room for the line from a label that was moved
    sides = [side for side in (point[0] + gap, point[0] - gap - width) if side >= 0 and side + width <= right]
    candidates = [Position(side, height + step * LINE) for step in STEPS for side in sides or [point[0] + gap]]
    free = (position for position in candidates if not any(_overlap(_box(position, width), box) for box in taken))
    return next(free, candidates[0])


def _box(position: Position, width: float) -> Box:
    return position.x, position.y - LINE / 2, position.x + width, position.y + LINE / 2


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _targets(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return each label's height of choice: its point's, spread out where points stand in one column."""
    heights = [y for _, y in points]
    for column in _columns([x for x, _ in points]):
        for index, height in zip(column, spread([heights[i] for i in column], LINE), strict=True):
            heights[index] = height
    return heights


def _columns(values: Sequence[float]) -> list[list[int]]:
    columns: list[list[int]] = []
    for index in sorted(range(len(values)), key=lambda i: values[i]):
        if columns and values[index] - values[columns[-1][0]] < COLUMN:
            columns[-1].append(index)
        else:
            columns.append([index])
    return columns


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Move values apart as little as is needed for neighbours to be `gap` apart; their order stays."""
    order, apart = np.argsort(values, kind="stable"), gap * np.arange(len(values))
    placed = np.empty(len(values))
    placed[order] = isotonic_regression(np.array(values)[order] - apart).x + apart
    return placed.tolist()
