"""Procedural patterns in two colours, at any slant and phase."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from suite.canvas import (
    COLUMNS,
    ROWS,
    SIZE,
    Array,
    Drawn,
    Labels,
    blend,
    per_image,
    rotated_grid,
    smooth_noise,
    to_pixels,
)

TEMPLATES = ["a {} texture.", "a photo of a {} surface."]


@dataclass(frozen=True)
class Plane:
    """What a pattern is drawn from: slanted coordinates, polar coordinates, the period; N x S x S each."""

    u: Array
    v: Array
    radius: Array
    angle: Array
    period: Array

    @property
    def frequency(self) -> Array:
        """Radians a pixel."""
        return 2 * np.pi / self.period

    def select(self, chosen: Labels) -> "Plane":
        """Return the plane of the chosen images."""
        return Plane(*(getattr(self, field)[chosen] for field in self.__dataclass_fields__))


def _triangle_wave(phase: Array) -> Array:
    return np.abs((phase % 1) - 0.5) * 4 - 1


def _striped(at: Plane, rng: Generator) -> Array:
    return 2 * np.sin(at.frequency * at.u)


def _checkered(at: Plane, rng: Generator) -> Array:
    return 3 * np.sin(at.frequency * at.u) * np.sin(at.frequency * at.v)


def _dotted(at: Plane, rng: Generator) -> Array:
    across, down = (at.u / at.period) % 1 - 0.5, (at.v / at.period) % 1 - 0.5
    return 3 * (0.35 - (across**2 + down**2) ** 0.5) * 3


def _gridded(at: Plane, rng: Generator) -> Array:
    return 4 * (np.maximum(np.cos(at.frequency * at.u), np.cos(at.frequency * at.v)) - 0.8)


def _zigzagged(at: Plane, rng: Generator) -> Array:
    return 2 * np.sin(at.frequency * (at.u + 0.35 * at.period * _triangle_wave(at.v / (at.period * 1.3))))


def _ringed(at: Plane, rng: Generator) -> Array:
    return 2 * np.sin(at.frequency * at.radius)


def _bricked(at: Plane, rng: Generator) -> Array:
    course = np.floor(at.v / (at.period * 0.6))
    beds = np.cos(2 * np.pi * at.v / (at.period * 0.6))
    joints = np.cos(np.pi / at.period * (at.u + at.period * (course % 2)))
    return -4 * (np.maximum(beds, joints) - 0.75)


def _blotchy(at: Plane, rng: Generator) -> Array:
    return 6 * (smooth_noise(rng, len(at.u), 5, 1)[..., 0] - 0.5)


def _grainy(at: Plane, rng: Generator) -> Array:
    return rng.normal(0, 1, at.u.shape)


def _woven(at: Plane, rng: Generator) -> Array:
    over = (np.floor(at.u / at.period) + np.floor(at.v / at.period)) % 2 == 0
    return np.where(over, np.sin(3 * at.frequency * at.u), np.sin(3 * at.frequency * at.v)) * 2


def _scaly(at: Plane, rng: Generator) -> Array:
    course = at.v / (at.period * 0.5)
    across = ((at.u + (np.floor(course) % 2) * at.period / 2) / at.period) % 1 - 0.5
    return 3 * ((across**2 + (course % 1 * 0.5) ** 2) ** 0.5 - 0.4) * 4


def _spiralled(at: Plane, rng: Generator) -> Array:
    return 2 * np.sin(at.frequency * at.radius * 0.8 + at.angle * 2)


PATTERNS: dict[str, Callable[[Plane, Generator], Array]] = {
    "striped": _striped,
    "checkered": _checkered,
    "dotted": _dotted,
    "gridded": _gridded,
    "zigzagged": _zigzagged,
    "ringed": _ringed,
    "bricked": _bricked,
    "blotchy": _blotchy,
    "grainy": _grainy,
    "woven": _woven,
    "scaly": _scaly,
    "spiralled": _spiralled,
}
CLASS_NAMES = list(PATTERNS)


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw textures; the clean ones are grey, almost upright, of one size and nearly free of noise."""
    clean = style == "clean"
    labels = rng.integers(len(CLASS_NAMES), size=count)
    plane = _draw_plane(rng, count, clean)
    height = np.empty((count, SIZE, SIZE))
    for label, pattern in enumerate(PATTERNS.values()):
        chosen = labels == label
        height[chosen] = pattern(plane.select(chosen), rng)
    mask = (1 / (1 + np.exp(-2.5 * height)))[..., None]
    light, dark = rng.uniform(0.55, 1, (count, 3)), rng.uniform(0, 0.45, (count, 3))
    if clean:
        light, dark = light.mean(1, keepdims=True), dark.mean(1, keepdims=True)
    shade = (smooth_noise(rng, count, 3) - 0.5) * (0.05 if clean else 0.25)
    image = blend(mask, per_image(light), per_image(dark)) + shade
    return to_pixels(image + rng.normal(0, 0.02 if clean else 0.05, image.shape)), labels


def _draw_plane(rng: Generator, count: int, clean: bool) -> Plane:
    slant = rng.uniform(-0.15, 0.15, count) if clean else rng.uniform(-0.8, 0.8, count)
    u, v = rotated_grid(slant.astype(np.float32))
    u = u + rng.uniform(0, 16, (count, 1, 1))
    v = v + rng.uniform(0, 16, (count, 1, 1))
    period = per_image(rng.uniform(6, 8, count) if clean else rng.uniform(5.5, 9, count))
    centre_x, centre_y = rng.uniform(-8, 8, (2, count, 1, 1))
    dx, dy = COLUMNS - centre_x, ROWS - centre_y
    return Plane(u, v, np.hypot(dx, dy), np.arctan2(dy, dx), period)
