"""House numbers: a light digit on a dark noisy plate, with cut-off neighbours to its left and right."""

import numpy as np
from numpy.random import Generator

from suite.canvas import Array, Drawn, blend, per_image, smooth_noise, to_pixels
from suite.glyphs import CLEAN_FONTS, FONTS, Jitter, glyph, glyph_masks, warp
from suite.tasks.digits import CLASS_NAMES

__all__ = ["CLASS_NAMES", "TEMPLATES", "draw"]

TEMPLATES = ["a street number {}.", "a photo of the house number {}."]

CHARACTERS = "0123456789"
STYLE_FONTS = {
    "clean": CLEAN_FONTS,
    "train": FONTS["train"] + ["cmr10", "cmb10"],
    "validation": FONTS["validation"] + ["cmss10"],
    "test": FONTS["test"] + ["cmss10", "cmtt10"],
}


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw plates; the clean style has dark digits on light plates, without neighbours and with little noise."""
    clean = style == "clean"
    fonts = STYLE_FONTS[style]
    labels = rng.integers(10, size=count)
    jitter = Jitter(turn=0.1, scale=(0.75, 1.0), shear=0.1, shift=1.5)
    masks = glyph_masks(rng, labels, CHARACTERS, fonts, jitter)
    light, dark = rng.uniform(0.65, 1, (count, 3)), rng.uniform(0, 0.4, (count, 3))
    digit, plate = (dark, light) if clean else (light, dark)
    if not clean:
        _add_neighbours(rng, masks, fonts)
    background = per_image(plate) + (smooth_noise(rng, count, 3) - 0.5) * (0.1 if clean else 0.4)
    image = blend(masks[..., None], per_image(digit), background)
    image += rng.normal(0, 0.02 if clean else 0.05, image.shape).astype(np.float32)
    return to_pixels(image), labels


def _add_neighbours(rng: Generator, masks: Array, fonts: list[str]) -> None:
    """Add to 60 % of the masks, on each side, a digit that the frame cuts."""
    count = len(masks)
    for side in (-1, 1):
        digits = rng.integers(10, size=count)
        choice = rng.integers(len(fonts), size=count)
        present = rng.random(count) < 0.6
        shift = side * rng.uniform(14, 18, count)
        scale = rng.uniform(0.75, 1.0, count)
        for i in np.flatnonzero(present):
            cell = glyph(CHARACTERS[digits[i]], fonts[choice[i]])
            masks[i] = np.maximum(masks[i], warp(cell, 0, scale[i], scale[i], 0, shift[i], 0))
