"""Pictographs in any two colours; seen in pretraining only."""

from numpy.random import Generator

from suite.canvas import Drawn, blend, contrasting_colours, per_image, to_pixels
from suite.glyphs import Jitter, glyph_masks

NAMES = {
    "☀": "sun",
    "☁": "cloud",
    "☂": "umbrella",
    "☃": "snowman",
    "★": "star",
    "☎": "telephone",
    "☕": "cup",
    "☠": "skull",
    "☢": "radioactive",
    "☮": "peace",
    "☯": "yinyang",
    "☹": "frown",
    "☺": "smile",
    "♔": "king",
    "♘": "knight",
    "♠": "spade",
    "♥": "heart",
    "♫": "music",
    "♻": "recycle",
    "⚓": "anchor",
    "⚔": "swords",
    "⚖": "scales",
    "⚡": "lightning",
    "✂": "scissors",
    "✈": "plane",
    "✉": "envelope",
    "✏": "pencil",
    "❄": "snowflake",
    "❤": "love",
    "➔": "arrow",
}
CHARACTERS, CLASS_NAMES = list(NAMES), list(NAMES.values())
TEMPLATES = ["an icon of a {}."]

FONTS = ["DejaVuSans", "DejaVuSans-Bold"]


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw pictographs; there is one style."""
    assert style == "clean", style
    labels = rng.integers(len(CLASS_NAMES), size=count)
    masks = glyph_masks(rng, labels, CHARACTERS, FONTS, Jitter())[..., None]
    ink, paper = contrasting_colours(rng, count, 0.4)
    return to_pixels(blend(masks, per_image(ink), per_image(paper))), labels
