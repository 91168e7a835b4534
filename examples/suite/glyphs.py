"""Draw characters of the fonts that come with matplotlib.

Tasks draw training, validation and test images with different faces of the same families, so that no test image shows
a face of the train split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw, ImageFont

from suite.canvas import SIZE, Array, Labels

FONT_FOLDER = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
CELL = 64  # glyphs are drawn at twice the size of an image, then warped down

CLEAN_FONTS = ["DejaVuSans", "DejaVuSerif"]
FONTS = {
    "train": [
        "DejaVuSans",
        "DejaVuSans-Oblique",
        "DejaVuSerif",
        "DejaVuSerif-Bold",
        "DejaVuSansMono-Bold",
        "STIXGeneral",
        "STIXGeneralBolIta",
    ],
    "validation": ["DejaVuSans-Bold", "DejaVuSerif-Italic", "DejaVuSansMono-Oblique"],
    "test": [
        "DejaVuSans-BoldOblique",
        "DejaVuSerif-BoldItalic",
        "DejaVuSansMono",
        "STIXGeneralBol",
        "STIXGeneralItalic",
    ],
}


@dataclass(frozen=True)
class Jitter:
    """How far a glyph may be turned (radians), scaled, sheared and shifted (pixels)."""

    turn: float = 0.2
    scale: tuple[float, float] = (0.75, 1.05)
    shear: float = 0.2
    shift: float = 2.5

    def draw(self, rng: Generator, count: int) -> Array:
        """Return N x 6 arguments of `warp`."""
        return np.stack(
            [
                rng.uniform(-self.turn, self.turn, count),
                rng.uniform(*self.scale, count),
                rng.uniform(*self.scale, count),
                rng.uniform(-self.shear, self.shear, count),
                rng.uniform(-self.shift, self.shift, count),
                rng.uniform(-self.shift, self.shift, count),
            ],
            axis=1,
        )


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    # The basic layout engine is always there; the other one depends on how Pillow was built.
    return ImageFont.truetype(str(FONT_FOLDER / f"{name}.ttf"), 46, layout_engine=ImageFont.Layout.BASIC)


@cache
def glyph(character: str, font_name: str) -> Image.Image:
    """Return the character in white on a black cell, centred by its bounding box."""
    font = _font(font_name)
    cell = Image.new("L", (CELL, CELL), 0)
    pen = ImageDraw.Draw(cell)
    left, top, right, bottom = pen.textbbox((0, 0), character, font=font)
    pen.text((CELL / 2 - (left + right) / 2, CELL / 2 - (top + bottom) / 2), character, fill=255, font=font)
    return cell


def warp(
    cell: Image.Image, turn: float, scale_x: float, scale_y: float, shear: float, shift_x: float, shift_y: float
) -> Array:
    """Return the cell as an S x S mask in [0, 1], turned, scaled, sheared and shifted about its centre."""
    cos, sin = np.cos(turn), np.sin(turn)
    forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, shear], [0, 1]]) @ np.diag([scale_x, scale_y])
    back = np.linalg.inv(forward) * (CELL / SIZE)
    offset = np.array([CELL / 2, CELL / 2]) - back @ np.array([SIZE / 2 + shift_x, SIZE / 2 + shift_y])
    coefficients = (back[0, 0], back[0, 1], offset[0], back[1, 0], back[1, 1], offset[1])
    warped = cell.transform((SIZE, SIZE), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    return np.asarray(warped, dtype=np.float32) / 255


def glyph_masks(
    rng: Generator, labels: Labels, characters: Sequence[str], fonts: Sequence[str], jitter: Jitter
) -> Array:
    """Return one N x S x S mask per label: its character in a random font of the list, jittered."""
    choice = rng.integers(len(fonts), size=len(labels))
    warps = jitter.draw(rng, len(labels))
    return np.stack(
        [
            warp(glyph(characters[label], fonts[font]), *arguments)
            for label, font, arguments in zip(labels, choice, warps, strict=True)
        ]
    )
