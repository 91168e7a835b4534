"""The subjects that can be drawn: a module each, with `CLASS_NAMES`, prompt `TEMPLATES` and `draw`.

A module's `draw(rng, count, style)` returns (N x 32 x 32 x 3 uint8, N labels). The styles are "clean", an easy look
that only pretraining sees, and the task's own look for "train", "validation" and "test", which differ in fonts or rows.
"""

import hashlib
from types import ModuleType

import numpy as np

from suite.canvas import Drawn
from suite.tasks import (
    armenian,
    counting,
    digits,
    greek,
    landcover,
    latin,
    pictographs,
    signs,
    street,
    textures,
)

TASKS: dict[str, ModuleType] = {
    "digits": digits,
    "street": street,
    "greek": greek,
    "armenian": armenian,
    "signs": signs,
    "textures": textures,
    "landcover": landcover,
    "counting": counting,
}
PRETRAINING_ONLY: dict[str, ModuleType] = {"latin": latin, "pict": pictographs}
SUBJECTS = TASKS | PRETRAINING_ONLY

SPLITS = ("train", "validation", "test")
STREAMS = {"clean": 0, "train": 1, "validation": 2, "test": 3}


def draw(subject: str, style: str, seed: int, count: int) -> Drawn:
    """Draw `count` images and their labels, a function of the arguments alone."""
    number = int.from_bytes(hashlib.sha256(subject.encode()).digest()[:4], "little")
    rng = np.random.default_rng([seed, number, STREAMS[style]])
    images, labels = SUBJECTS[subject].draw(rng, count, style)
    return images, np.asarray(labels, np.int64)
