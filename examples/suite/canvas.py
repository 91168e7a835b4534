"""Draw batches of 32 x 32 RGB images with numpy: grids, smooth noise, colours.

Shapes: N images, S = 32 pixels a side, C channels. Pixel values are floats in [0, 1] until `to_pixels`.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

SIZE = 32

Array = NDArray[np.floating]
Labels = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Drawn = tuple[Pixels, Labels]

_AXIS = np.arange(SIZE, dtype=np.float32) - 15.5
ROWS, COLUMNS = np.meshgrid(_AXIS, _AXIS, indexing="ij")


def rotated_grid(angles: Array) -> tuple[Array, Array]:
    """Return the coordinates (u, v) of every pixel in axes turned by each of N angles, both N x S x S."""
    cos, sin = np.cos(angles)[:, None, None], np.sin(angles)[:, None, None]
    return COLUMNS * cos + ROWS * sin, -COLUMNS * sin + ROWS * cos


def smooth_noise(rng: Generator, count: int, cells: int = 4, channels: int = 3) -> Array:
    """Return N x S x S x C smooth random fields in [0, 1]: a grid of cells x cells, interpolated bilinearly."""
    grid = rng.random((count, cells + 1, cells + 1, channels), dtype=np.float32)
    position = np.linspace(0, cells, SIZE, endpoint=False, dtype=np.float32)
    cell = position.astype(int)
    share = position - cell
    down, across = share[None, :, None, None], share[None, None, :, None]
    rows = grid[:, cell] * (1 - down) + grid[:, cell + 1] * down
    return rows[:, :, cell] * (1 - across) + rows[:, :, cell + 1] * across


def contrasting_colours(rng: Generator, count: int, gap: float) -> tuple[Array, Array]:
    """Return two N x 3 colours; pairs whose luminance differs by less than `gap` are redrawn, up to 20 times."""
    first = rng.random((count, 3)).astype(np.float32)
    second = rng.random((count, 3)).astype(np.float32)
    luminance = np.array([0.3, 0.59, 0.11], np.float32)
    for _ in range(20):
        close = np.abs((first - second) @ luminance) < gap
        first[close] = rng.random((close.sum(), 3))
        second[close] = rng.random((close.sum(), 3))
    return first, second


def blend(mask: Array, over: Array, under: Array) -> Array:
    """Paint `over` onto `under` where the mask is 1."""
    return mask * over + (1 - mask) * under


def per_image(values: NDArray[Any]) -> NDArray[Any]:
    """Turn N x C values, one per image, into N x 1 x 1 x C."""
    return values[:, None, None]


def to_pixels(image: Array) -> Pixels:
    """Clip to [0, 1] and round to bytes."""
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)
