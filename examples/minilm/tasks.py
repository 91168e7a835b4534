"""The tasks: real texts with labels, from people's ratings and from the docstrings of installed libraries."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path

Row = tuple[str, float]  # a text and its label: the number of its class, or what is predicted

LIBRARIES = ("numpy", "scipy", "pandas", "matplotlib", "sklearn", "sqlalchemy", "mlflow", "prefect")
AREAS = ("stats", "optimize", "signal", "sparse", "interpolate", "linalg", "special", "spatial", "io", "integrate")
PACKAGES = {"sklearn": "scikit-learn"}  # where it is not the library's name
NAMES = re.compile(rf"(scikits?|scikit-learn|{'|'.join(LIBRARIES)})(\.\w+)*|\b(np|pd|plt|sp)(?=\.)", re.IGNORECASE)
SHORTEST, LONGEST = 8, 60  # words of a docstring that are taken


@dataclass(frozen=True)
class Rated:
    """Texts that people rated from -4 to 4 (Hutto and Gilbert, ICWSM 2014): their mean, or its side of the middle.

    Texts whose side is none of the classes are left out.
    """

    file: str
    classes: tuple[str, ...] = ()
    middle: float = 0.5  # ratings up to here, either way, are neutral
    most: int | None = None  # texts of a class that are taken

    def rows(self, ratings: Path) -> Iterator[Row]:
        """Read the texts."""
        text = (ratings / f"{self.file}_GroundTruth.txt").read_text(encoding="utf-8", errors="replace")
        for fields in (line.split("\t", 2) for line in text.splitlines()):
            if len(fields) < 3:
                continue
            rating = float(fields[1])
            side = "neutral" if abs(rating) <= self.middle else "positive" if rating > 0 else "negative"
            if not self.classes:
                yield fields[2].strip(), rating
            elif side in self.classes:
                yield fields[2].strip(), self.classes.index(side)


@dataclass(frozen=True)
class Documented:
    """Docstrings of libraries, whose names are masked: which library, or which area of one, they are of."""

    libraries: tuple[str, ...]
    classes: tuple[str, ...]
    most: int | None = 700  # libraries differ tenfold

    def rows(self, ratings: Path) -> Iterator[Row]:
        """Read the docstrings of modules in whose path a class stands; nothing is imported."""
        del ratings
        for library in self.libraries:
            site = Path(str(distribution(PACKAGES.get(library, library)).locate_file("")))
            for path in sorted((site / library).rglob("*.py")):
                parts = path.relative_to(site).parts
                known = [part for part in parts[:2] if part in self.classes]
                if known and not any("test" in part for part in parts):
                    yield from ((text, self.classes.index(known[0])) for text in docstrings(path))


def docstrings(module: Path) -> Iterator[str]:
    """Give the docstrings of a module's functions and classes, a line each, without the libraries' names."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            words = (ast.get_docstring(node) or "").split()
            if len(words) >= SHORTEST:
                yield NAMES.sub("library", " ".join(islice(words, LONGEST)))


SIDES = ("negative", "positive")
TASKS: dict[str, Rated | Documented] = {
    "movies": Rated("movieReviewSnippets", SIDES),
    "amazon": Rated("amazonReviewSnippets", ("negative", "neutral", "positive")),
    "nyt": Rated("nytEditorialSnippets", SIDES, middle=0.4),
    "tweets": Rated("tweets"),
    "library": Documented(LIBRARIES, LIBRARIES),
    "area": Documented(("scipy",), AREAS),
}
