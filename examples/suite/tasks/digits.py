"""Handwritten digits: scikit-learn's copy of the UCI test set (1797 images of 8 x 8 by 13 writers).

The clean style shows font digits only: pretraining never sees the handwriting.
"""

import numpy as np
from numpy.random import Generator
from PIL import Image

from suite.canvas import Array, Drawn, Labels, Pixels, to_pixels
from suite.glyphs import CELL, Jitter, glyph_masks, warp

CLASS_NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEMPLATES = ["a photo of the digit {}.", "the handwritten number {}."]

CLEAN_FONTS = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique", "cmb10"]
ROWS = {"train": slice(0, 1000), "validation": slice(1000, 1250), "test": slice(1250, 1797)}  # the file is by writer


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw font digits (clean), jittered copies of the first 1000 rows (train), or at most `count` rows as they are."""
    if style == "clean":
        labels = rng.integers(10, size=count)
        font_digits = glyph_masks(rng, labels, "0123456789", CLEAN_FONTS, Jitter(turn=0.15, scale=(0.8, 1.1)))
        return _grey_pixels(font_digits), labels
    rows, labels = _handwriting(ROWS[style])
    if style == "train":
        order = rng.permutation(np.arange(count) % len(rows))
        rows, labels = rows[order], labels[order]
        masks = [warp(_cell(row), *_jitter(rng)) for row in rows]
    else:
        rows, labels = rows[:count], labels[:count]
        masks = [warp(_cell(row), turn=0, scale_x=1, scale_y=1, shear=0, shift_x=0, shift_y=0) for row in rows]
    return _grey_pixels(np.stack(masks)), labels


def _handwriting(rows: slice) -> tuple[Array, Labels]:
    # Imported here as it takes seconds, and every stage imports the tasks for their class names.
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    return grey[rows], labels[rows].astype(np.int64)


def _grey_pixels(masks: Array) -> Pixels:
    return to_pixels(np.repeat(masks[..., None], 3, axis=-1))


def _cell(row: Array) -> Image.Image:
    """Return a row of 64 grey values from 0 to 16 as an image of the size of a glyph's."""
    grey = np.clip(row.reshape(8, 8) * 15.9, 0, 255).astype(np.uint8)
    cell = Image.new("L", (CELL, CELL), 0)
    cell.paste(Image.fromarray(grey).resize((52, 52), Image.Resampling.BICUBIC), (6, 6))
    return cell


def _jitter(rng: Generator) -> tuple[float, ...]:
    bounds = [(-0.15, 0.15), (0.9, 1.1), (0.9, 1.1), (-0.1, 0.1), (-1.5, 1.5), (-1.5, 1.5)]
    return tuple(rng.uniform(low, high) for low, high in bounds)
