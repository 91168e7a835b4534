"""Latin capitals in any two colours; seen in pretraining only."""

from numpy.random import Generator

from suite.canvas import Drawn, blend, contrasting_colours, per_image, to_pixels
from suite.glyphs import Jitter, glyph_masks

CLASS_NAMES = list("abcdefghijklmnopqrstuvwxyz")
TEMPLATES = ["the latin letter {}."]

FONTS = ["DejaVuSans", "DejaVuSerif", "cmr10"]


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw capitals; there is one style."""
    assert style == "clean", style
    labels = rng.integers(len(CLASS_NAMES), size=count)
    masks = glyph_masks(rng, labels, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", FONTS, Jitter())[..., None]
    ink, paper = contrasting_colours(rng, count, 0.4)
    return to_pixels(blend(masks, per_image(ink), per_image(paper))), labels
