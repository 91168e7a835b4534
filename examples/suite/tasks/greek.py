"""Greek letters in ink on ruled paper; the faces of training, validation and test differ."""

import numpy as np
from numpy.random import Generator

from suite.canvas import ROWS, Drawn, blend, smooth_noise, to_pixels
from suite.glyphs import CLEAN_FONTS, FONTS, Jitter, glyph_masks

NAMES = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "δ": "delta",
    "ε": "epsilon",
    "ζ": "zeta",
    "η": "eta",
    "θ": "theta",
    "ι": "iota",
    "κ": "kappa",
    "λ": "lambda",
    "μ": "mu",
    "ν": "nu",
    "ξ": "xi",
    "ο": "omicron",
    "π": "pi",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "υ": "upsilon",
    "φ": "phi",
    "χ": "chi",
    "ψ": "psi",
    "ω": "omega",
}
CHARACTERS, CLASS_NAMES = list(NAMES), list(NAMES.values())
TEMPLATES = ["the greek letter {}.", "a scan of the greek letter {}."]


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw letters on paper; the clean style's paper is not ruled."""
    fonts = CLEAN_FONTS if style == "clean" else FONTS[style]
    labels = rng.integers(24, size=count)
    jitter = Jitter(turn=0.12, scale=(0.9, 1.15), shear=0.1, shift=1.5)
    masks = glyph_masks(rng, labels, CHARACTERS, fonts, jitter)[..., None]
    paper = 0.75 + 0.25 * smooth_noise(rng, count, 3)
    ink = rng.uniform(0, 0.35, (count, 1, 1, 3)).astype(np.float32)
    on_rule = (ROWS[None] + rng.uniform(0, 8, (count, 1, 1))) % 8 < 1
    if style != "clean":
        paper = paper - on_rule[..., None] * np.array([0.35, 0.15, 0], np.float32)
    image = blend(masks, ink, paper)
    return to_pixels(image + rng.normal(0, 0.04, image.shape)), labels
