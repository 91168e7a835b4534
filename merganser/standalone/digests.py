"""The sha256 of the files that a merge reads, computed while it reads them."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from merganser.checkpoints.reading import Checkpoint, files_of
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.config.recipes import Recipe
from merganser.hashes import ReadDigest, sha256_of
from merganser.sources.named import read_files

BASE = "(base)"  # among the sources of a merge


def is_copied(recipe: Recipe, name: str) -> bool:
    """Tell whether the files next to a model's weights are read too."""
    return name == BASE or recipe.choice is not None


class ModelDigests:
    """The sha256 of the models' files: from the bytes that a merge reads in order, or else computed in parallel."""

    def __init__(self, reader: ThreadPoolExecutor) -> None:
        self._reader = reader
        self._read: dict[Path, ReadDigest] = {}
        self._others: dict[Path, Future[str]] = {}

    def watch(self, model: Checkpoint) -> None:
        """Hash a model's files from the bytes that the merge reads."""
        for path, file in files_of(model).items():
            if isinstance(file, SafetensorsFile) and file.read_in_order():
                file.digest = self._read.setdefault(path.resolve(), ReadDigest(path))

    def hash_others(self, recipe: Recipe, given: Mapping[str, Path]) -> None:
        """Start hashing the files that the merge does not read in order."""
        for name, path in given.items():
            folder = path if path.is_dir() else path.parent
            for file in read_files(path, is_copied(recipe, name)):
                place = (folder / file).resolve()
                if place not in self._read and place not in self._others:
                    self._others[place] = self._reader.submit(sha256_of, place)

    def sha256(self, path: Path) -> str:
        """Return the sha256 of a file of the models; call it after the merge."""
        place = path.resolve()
        return self._read[place].hexdigest() if place in self._read else self._others[place].result()
