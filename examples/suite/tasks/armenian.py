"""Armenian letters, light on dark, with salt and pepper; the faces of training, validation and test differ."""

import numpy as np
from numpy.random import Generator

from suite.canvas import SIZE, Drawn, blend, smooth_noise, to_pixels
from suite.glyphs import CLEAN_FONTS, FONTS, Jitter, glyph_masks

NAMES = {
    "ա": "ayb",
    "բ": "ben",
    "գ": "gim",
    "դ": "da",
    "ե": "yech",
    "զ": "za",
    "է": "eh",
    "ը": "yet",
    "թ": "to",
    "ժ": "zhe",
    "ի": "ini",
    "լ": "lyun",
    "խ": "khe",
    "ծ": "tsa",
    "կ": "ken",
    "հ": "ho",
    "ձ": "dza",
    "ղ": "ghat",
    "ճ": "che",
    "մ": "men",
}
CHARACTERS, CLASS_NAMES = list(NAMES), list(NAMES.values())
TEMPLATES = ["the armenian letter {}.", "a neon armenian letter {}."]

STYLE_FONTS = {
    "clean": CLEAN_FONTS,
    # Only the DejaVu faces have the script.
    **{style: [font for font in fonts if font.startswith("DejaVu")] for style, fonts in FONTS.items()},
}


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw letters; the clean style has no salt and pepper."""
    labels = rng.integers(len(CHARACTERS), size=count)
    jitter = Jitter(turn=0.1, scale=(0.85, 1.1), shear=0.1, shift=1.5)
    masks = glyph_masks(rng, labels, CHARACTERS, STYLE_FONTS[style], jitter)[..., None]
    ink = rng.uniform(0.55, 1, (count, 1, 1, 3)).astype(np.float32)
    image = blend(masks, ink, 0.35 * smooth_noise(rng, count, 6))
    if style != "clean":
        speck = rng.random((count, SIZE, SIZE, 1))
        image = np.where(speck < 0.03, 1.0, np.where(speck > 0.97, 0.0, image))
    return to_pixels(image), labels
