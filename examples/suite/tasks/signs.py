"""Traffic signs: a shape with a border and a face colour and a symbol, on a blurred street."""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from suite.canvas import Array, Drawn, rotated_grid, smooth_noise, to_pixels

COLOURS = {
    "red": (0.8, 0.1, 0.12),
    "blue": (0.12, 0.25, 0.75),
    "yellow": (0.95, 0.8, 0.1),
    "white": (0.95, 0.95, 0.95),
    "green": (0.1, 0.55, 0.25),
    "black": (0.08, 0.08, 0.08),
}


class Outline(NamedTuple):
    """A regular polygon: number of corners, angle of the first, and a factor that evens out the sizes."""

    corners: int
    angle: float
    factor: float


OUTLINES = {
    "triangle": Outline(3, -np.pi / 2, 0.62),
    "inverted triangle": Outline(3, np.pi / 2, 0.62),
    "square": Outline(4, np.pi / 4, 0.85),
    "diamond": Outline(4, 0, 0.85),
    "octagon": Outline(8, np.pi / 8, np.cos(np.pi / 8)),
}


class Sign(NamedTuple):
    """One class: shape, border colour, face colour, symbol."""

    shape: str
    border: str
    face: str
    symbol: str

    @property
    def name(self) -> str:
        """Say the sign in words, the face colour only if it differs from the border's."""
        face = "" if self.face == self.border else f"{self.face} "
        return f"{self.border} {face}{self.shape} with {self.symbol}"


SIGNS = [
    Sign("circle", "red", "white", "blank"),
    Sign("circle", "red", "white", "horizontal bar"),
    Sign("circle", "red", "white", "vertical bar"),
    Sign("circle", "red", "white", "slash"),
    Sign("circle", "red", "white", "cross"),
    Sign("circle", "red", "white", "dot"),
    Sign("circle", "blue", "blue", "slash"),
    Sign("circle", "blue", "blue", "dot"),
    Sign("circle", "blue", "blue", "vertical bar"),
    Sign("triangle", "red", "white", "vertical bar"),
    Sign("triangle", "red", "white", "dot"),
    Sign("triangle", "red", "white", "cross"),
    Sign("triangle", "red", "yellow", "dot"),
    Sign("inverted triangle", "red", "white", "blank"),
    Sign("octagon", "red", "red", "horizontal bar"),
    Sign("octagon", "red", "red", "cross"),
    Sign("diamond", "yellow", "yellow", "blank"),
    Sign("diamond", "yellow", "yellow", "slash"),
    Sign("square", "blue", "blue", "cross"),
    Sign("square", "green", "green", "horizontal bar"),
    Sign("square", "blue", "white", "vertical bar"),
]
CLASS_NAMES = [sign.name for sign in SIGNS]
TEMPLATES = ["a {} traffic sign.", "a photo of a {} sign."]


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw signs; the clean ones are large, centred, evenly lit and free of noise."""
    clean = style == "clean"
    labels = rng.integers(len(SIGNS), size=count)
    u, v = rotated_grid(rng.uniform(-0.2, 0.2, count).astype(np.float32))
    radius = rng.uniform(11 if clean else 8.5, 13.5, count).astype(np.float32)
    shift_x, shift_y = rng.uniform(-2.5, 2.5, (2, count, 1, 1)).astype(np.float32) * (0.4 if clean else 1)
    u, v = u - shift_x, v - shift_y
    image = smooth_noise(rng, count, 4) * 0.8 + 0.1
    for i, label in enumerate(labels):
        image[i] = _paint(image[i], SIGNS[label], u[i], v[i], radius[i])
    if not clean:
        image = image * rng.uniform(0.45, 1.25, (count, 1, 1, 1))
        image = image + rng.uniform(-0.08, 0.08, (count, 1, 1, 3)) + rng.normal(0, 0.05, image.shape)
    return to_pixels(image), labels


def _paint(street: Array, sign: Sign, u: Array, v: Array, radius: np.floating) -> Array:
    """Paint the sign onto an S x S x 3 street; u and v are the pixels' coordinates in the sign's own axes."""
    distance = _distance(sign.shape, u, v) / radius
    body = np.clip((1 - distance) * radius + 0.5, 0, 1)[..., None]
    face = np.clip((0.72 - distance) * radius + 0.5, 0, 1)[..., None]
    image = street * (1 - body) + body * np.array(COLOURS[sign.border])
    image = image * (1 - face) + face * np.array(COLOURS[sign.face])
    symbol = _symbol(sign, u, v, radius)[..., None]
    colour = "black" if sign.face in ("white", "yellow") else "white"
    return image * (1 - symbol) + symbol * np.array(COLOURS[colour])


def _distance(shape: str, u: Array, v: Array) -> Array:
    """Return a distance from the centre whose level lines have the shape."""
    from_centre = np.hypot(u, v)
    if shape == "circle":
        return from_centre
    corners, angle, factor = OUTLINES[shape]
    sector = np.pi / corners
    to_side = (np.arctan2(v, u) - angle) % (2 * sector) - sector
    return from_centre * np.cos(to_side) / np.cos(sector) * factor


def _symbol(sign: Sign, u: Array, v: Array, radius: np.floating) -> Array:
    """Return the symbol's S x S mask."""
    triangular = "triangle" in sign.shape
    length = radius * (0.3 if triangular else 0.5)
    width = radius * 0.12 + 0.3
    v = v - (radius * 0.12 if sign.shape == "triangle" else 0)
    falling, rising = (u + v) / 1.414, (u - v) / 1.414

    def bar(along: Array, across: Array) -> Array:
        return np.clip(length - np.abs(along) + 0.5, 0, 1) * np.clip(width - np.abs(across) + 0.5, 0, 1)

    match sign.symbol:
        case "horizontal bar":
            return bar(u, v)
        case "vertical bar":
            return bar(v, u)
        case "slash":
            return bar(rising, falling)
        case "cross":
            return np.maximum(bar(rising, falling), bar(falling, rising))
        case "dot":
            return np.clip(length * 0.55 - np.hypot(u, v) + 0.5, 0, 1)
        case _:
            return np.zeros_like(u)
