"""Find a word in the code that a stage's command runs, without running it."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import is_params

_CODE = (".py", ".ipynb", ".sh", ".bash")
_MODULES = (".py", ".ipynb")
_IMPORT = re.compile(rb"^\s*\"?(?:from\s+([\w.]+)\s+import\s*(\([^)]*\)|[^\n#]*)|import\s+([^\n#]+))", re.M)
_MOST_FILES = 1000  # that are looked at in a folder that a stage reads: more is data


class CodeSearch:
    """A search for a pattern in stages' code: their scripts, code that they depend on, and what these import.

    Only files of the repository are read. `outputs` are the paths that stages write.
    """

    def __init__(self, root: Path, pattern: bytes, outputs: Collection[str]) -> None:
        self._root, self._pattern, self._outputs = root, re.compile(pattern), outputs
        self._is_file = cache(os.path.isfile)
        self._of_folder = cache(self._code_in)
        # The files from which the pattern is not reached, with the folders from which modules are imported.
        self._free: set[tuple[str, str]] = set()
        self._found: set[tuple[str, str]] = set()

    def __call__(self, stage: Stage) -> bool:
        """Tell whether the pattern is in the stage's command or in its code."""
        lines = stage.cmd if isinstance(stage.cmd, list) else str(stage.cmd or "").splitlines()
        if any(self._pattern.search(os.fsencode(line)) for line in lines):
            return True
        begins = dict.fromkeys([*self._named(" ".join(lines), stage.wdir), *self._dependencies(stage)])
        return any(self._reaches(path, stage.wdir) for path in begins)

    def _reaches(self, begin: str, folder: str) -> bool:
        if (begin, folder) in self._found:
            return True
        waiting, seen = [begin], {begin}
        while waiting:
            path = waiting.pop()
            if (path, folder) in self._free:
                continue
            content = _read(path)
            if (path, folder) in self._found or self._pattern.search(content):
                self._found |= {(begin, folder), (path, folder)}
                return True
            is_module = path.endswith(_MODULES)
            find = self._imported(path, content, folder) if is_module else self._named(os.fsdecode(content), folder)
            waiting += [each for each in dict.fromkeys(find) if each not in seen]
            seen.update(waiting)
        self._free |= {(path, folder) for path in seen}
        return False

    def _named(self, text: str, folder: str) -> Iterator[str]:
        """Find the files of code that a command line names, also as modules (`python -m package.module`)."""
        words = _words(text)
        for before, word in zip(["", *words], words, strict=False):
            if word.endswith(_CODE):
                yield from self._there([os.path.join(folder, word)])
            elif before == "-m":
                yield from self._module(word.split("."), [folder], ("__main__",))

    def _dependencies(self, stage: Stage) -> Iterator[str]:
        """Find the files of code that a stage declares as dependencies, those in folders too."""
        for dep in stage.deps:
            path = dep.fs_path
            if is_params(dep) or dep.protocol != "local" or path in self._outputs or not self._is_inside(path):
                continue
            if os.path.isdir(path):
                yield from self._of_folder(path)
            elif path.endswith(_CODE):
                yield from self._there([path])

    def _code_in(self, folder: str) -> list[str]:
        files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
        return [path for path in islice(files, _MOST_FILES) if path.endswith(_CODE)]

    def _imported(self, path: str, content: bytes, folder: str) -> Iterator[str]:
        """Find the repository's files that a module imports."""
        here = os.path.dirname(path)
        roots = [here, folder, str(self._root), os.path.join(folder, "src"), str(self._root / "src")]
        for source, names, modules in _IMPORT.findall(content):
            for module in re.findall(rb"(?:^|,)\s*([\w.]+)", modules):
                yield from self._module(module.decode().split("."), roots)
            dotted = source.decode()
            level = len(dotted) - len(dotted.lstrip("."))
            above = [os.path.join(here, *[".."] * (level - 1))] if level else roots
            inside = re.findall(r"\w+", re.sub(r"\bas\s+\w+", "", names.decode(errors="replace")))
            if dotted:
                yield from self._module([part for part in dotted.split(".") if part], above, inside)

    def _module(self, parts: list[str], roots: Iterable[str], names: Iterable[str] = ()) -> Iterator[str]:
        """Find a module's file, its packages', and those of modules of these names inside it."""
        for root in dict.fromkeys(roots):
            paths = [os.path.join(root, *parts[:end]) for end in range(1, len(parts) + 1)] or [root]
            inside = [os.path.join(paths[-1], name) for name in names]
            yield from self._there(f"{path}{end}" for path in (*paths, *inside) for end in (".py", "/__init__.py"))

    def _there(self, paths: Iterable[str]) -> Iterator[str]:
        return (path for path in map(os.path.normpath, paths) if self._is_inside(path) and self._is_file(path))

    def _is_inside(self, path: str) -> bool:
        return path.startswith(f"{self._root}/")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # its command says so
        return b""
