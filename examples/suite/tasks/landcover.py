"""Aerial mosaics of ten kinds of land, under haze and clouds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from suite.canvas import SIZE, Array, Drawn, rotated_grid, smooth_noise, to_pixels

TEMPLATES = ["a satellite photo of {}.", "an aerial view of {}."]


def _colour(*rgb: float) -> Array:
    return np.array(rgb, np.float32)


GRASS, SOIL, CROP = _colour(0.35, 0.48, 0.22), _colour(0.55, 0.43, 0.3), _colour(0.6, 0.55, 0.28)
WOOD, WATER, ROOF = _colour(0.1, 0.26, 0.12), _colour(0.08, 0.2, 0.33), _colour(0.7, 0.4, 0.33)
CONCRETE, HALL = _colour(0.42, 0.42, 0.42), _colour(0.4, 0.4, 0.42)
ASPHALT, MARKING = _colour(0.5, 0.5, 0.5), _colour(0.9, 0.9, 0.8)


@dataclass(frozen=True)
class Ground:
    """What one image is drawn from, each S x S x 1 but for `fields` (S x S x 3) and `spacing` (pixels)."""

    u: Array
    v: Array
    coarse: Array
    fine: Array
    grain: Array
    fields: Array
    spacing: float

    def blocks(self, size: float, half_width: float) -> Array:
        """Return a mask of squares, one in each cell of a grid."""
        return (np.abs(self.u % size - size / 2) < size * half_width) & (
            np.abs(self.v % size - size / 2) < size * half_width
        )


def _water(ground: Ground, rng: Generator) -> Array:
    return WATER + 0.08 * (ground.coarse - 0.5) + 0.015 * ground.grain


def _forest(ground: Ground, rng: Generator) -> Array:
    return WOOD + 0.14 * (ground.fine - 0.5) + 0.05 * ground.grain


def _crop_field(ground: Ground, rng: Generator) -> Array:
    return ground.fields + 0.10 * np.sin(2 * np.pi * ground.u / 3.2) * (ground.coarse > 0.35)


def _orchard(ground: Ground, rng: Generator) -> Array:
    gap = ground.spacing
    crown = np.hypot((ground.u % gap) - gap / 2, (ground.v % gap) - gap / 2) < gap * 0.3
    return SOIL * 0.9 + (WOOD - SOIL) * crown + 0.03 * ground.grain


def _residential(ground: Ground, rng: Generator) -> Array:
    lot = rng.uniform(5, 7)
    built = np.where(rng.random((12, 12)) < 0.6, 1, 0)
    house = built[((ground.u + 40) / lot).astype(int) % 12, ((ground.v + 40) / lot).astype(int) % 12]
    lawn = GRASS * 0.8
    return lawn + (ROOF - lawn) * (ground.blocks(lot, 0.3) * house) + 0.05 * ground.grain


def _industrial(ground: Ground, rng: Generator) -> Array:
    hall = ground.blocks(rng.uniform(10, 14), 0.36)
    return CONCRETE + HALL * hall * (0.7 + 0.3 * ground.coarse) + 0.04 * ground.grain


def _highway(ground: Ground, rng: Generator) -> Array:
    middle, half_width = rng.uniform(-6, 6), rng.uniform(1.6, 2.6)
    distance = np.abs(ground.u - middle)
    return np.where(distance < 0.4, MARKING, np.where(distance < half_width, ASPHALT, ground.fields))


def _river(ground: Ground, rng: Generator) -> Array:
    middle = rng.uniform(-6, 6)
    bends = rng.uniform(2, 4) * np.sin(ground.v / rng.uniform(4, 7) + rng.uniform(0, 6))
    return np.where(np.abs(ground.u - middle - bends) < rng.uniform(1.8, 3.2), WATER, ground.fields)


def _pasture(ground: Ground, rng: Generator) -> Array:
    return GRASS + 0.12 * (ground.coarse - 0.5) + 0.03 * ground.grain


def _bare_soil(ground: Ground, rng: Generator) -> Array:
    return SOIL + 0.16 * (ground.coarse - 0.5) + 0.06 * (ground.fine - 0.5) + 0.02 * ground.grain


COVERS: dict[str, Callable[[Ground, Generator], Array]] = {
    "water": _water,
    "forest": _forest,
    "crop field": _crop_field,
    "orchard": _orchard,
    "residential area": _residential,
    "industrial area": _industrial,
    "highway": _highway,
    "river": _river,
    "pasture": _pasture,
    "bare soil": _bare_soil,
}
CLASS_NAMES = list(COVERS)


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw land; the clean style is almost aligned with the frame, without haze, clouds or sensor noise."""
    clean = style == "clean"
    labels = rng.integers(len(CLASS_NAMES), size=count)
    turn = rng.uniform(-0.2, 0.2, count) if clean else rng.uniform(-np.pi, np.pi, count)
    u, v = rotated_grid(turn.astype(np.float32))
    coarse, fine = smooth_noise(rng, count, 4, 1), smooth_noise(rng, count, 8, 1)
    grain = rng.normal(0, 1, (count, SIZE, SIZE, 1))
    paint = list(COVERS.values())
    image = np.empty((count, SIZE, SIZE, 3), np.float32)
    for i, label in enumerate(labels):
        ground = _draw_ground(rng, u[i, ..., None], v[i, ..., None], coarse[i], fine[i], grain[i])
        image[i] = paint[label](ground, rng)
    return to_pixels(image if clean else _photograph(rng, image)), labels


def _draw_ground(rng: Generator, u: Array, v: Array, coarse: Array, fine: Array, grain: Array) -> Ground:
    """Lay a chequered mosaic of fields of one kind."""
    kind = [GRASS, SOIL, CROP][rng.integers(3)]
    chequer = (np.floor((u + 40) / rng.uniform(9, 16)) + np.floor((v + 40) / rng.uniform(9, 16))) % 2 == 0
    return Ground(u, v, coarse, fine, grain, fields=np.where(chequer, 1, 0.8) * kind, spacing=rng.uniform(4, 6.5))


def _photograph(rng: Generator, image: Array) -> Array:
    """Vary light and tint, add sensor noise, and clouds over half of the images."""
    count = len(image)
    image = image * rng.uniform(0.6, 1.3, (count, 1, 1, 1)) + rng.uniform(-0.12, 0.12, (count, 1, 1, 3))
    image = image + rng.normal(0, 0.04, image.shape)
    cloud = np.clip(smooth_noise(rng, count, 3, 1) - 0.55, 0, 1) * 1.2 * (rng.random((count, 1, 1, 1)) < 0.5)
    return image * (1 - cloud) + cloud
