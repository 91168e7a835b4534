"""One to six discs or squares on a dark ground: how many are there?"""

import numpy as np
from numpy.random import Generator

from suite.canvas import COLUMNS, ROWS, SIZE, Array, Drawn, blend, per_image, smooth_noise, to_pixels

CLASS_NAMES = ["one", "two", "three", "four", "five", "six"]
TEMPLATES = ["a picture of {} objects.", "there are {} things."]

CELL_CENTRES = np.array([-10.5, 0, 10.5])


def draw(rng: Generator, count: int, style: str) -> Drawn:
    """Draw objects in cells of a 3 x 3 grid; the clean ones are equal white discs on an even ground."""
    clean = style == "clean"
    labels = rng.integers(len(CLASS_NAMES), size=count)
    ground = np.full((count, SIZE, SIZE, 3), 0.1, np.float32) if clean else smooth_noise(rng, count, 3) * 0.35
    image: Array = ground + rng.uniform(0, 0.2, (count, 1, 1, 3))
    cells = rng.random((count, 9)).argsort(1)
    jitter = rng.uniform(-1.6, 1.6, (count, 9, 2))
    radius = rng.uniform(2.5, 3.6, (count, 9))
    colour = rng.uniform(0.6, 1, (count, 9, 3))
    square = rng.random((count, 9)) < (0 if clean else 0.5)
    if clean:
        colour[:], radius[:] = 1.0, 3
    for place in range(len(CLASS_NAMES)):
        present = (labels >= place).astype(np.float32)
        centre_x = CELL_CENTRES[cells[:, place] % 3] + jitter[:, place, 0]
        centre_y = CELL_CENTRES[cells[:, place] // 3] + jitter[:, place, 1]
        dx, dy = np.abs(COLUMNS - per_image(centre_x)), np.abs(ROWS - per_image(centre_y))
        distance = np.where(per_image(square[:, place]), np.maximum(dx, dy) * 1.1, np.hypot(dx, dy))
        mask = np.clip(per_image(radius[:, place]) - distance + 0.5, 0, 1) * per_image(present)
        image = blend(mask[..., None], per_image(colour[:, place]), image)
    return to_pixels(image + rng.normal(0, 0.01 if clean else 0.05, image.shape)), labels
