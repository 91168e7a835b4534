"""Follow a chapter of CONTRIBUTING.md in a copy of the code, in which only files that the chapter names change."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from merganser.code_digest import ROOT
from tests.support import python

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
CHAPTERS = dict(re.findall(r"^## (Add .*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
COPIED = ("merganser", "flows", "tasks", "tests", "suites", "published")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")


class Copy:
    """A copy of the code and its tests; the engine is a link."""

    def __init__(self, folder: Path, *chapters: str) -> None:
        self.folder, self.added, self.steps = folder, set[str](), "".join(CHAPTERS[name] for name in chapters)
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))
        shutil.copy(ROOT / "dvc.yaml", folder)
        for name in ("packages", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)

    def add(self, path: str, text: str) -> None:
        """Write a new file into a folder that the chapter names."""
        assert f"{Path(path).parent}/" in self.steps, path
        assert not (self.folder / path).exists(), path
        (self.folder / path).write_text(text.lstrip())
        self.added.add(path)

    def insert(self, path: str, text: str, before: str) -> None:
        """Insert text before the one place where a file that the chapter names has these words."""
        place = Path(path)
        assert path in self.added or place.name in self.steps or f"{place.parent}/" in self.steps, path
        content = (self.folder / path).read_text()
        assert content.count(before) == 1, (path, before)
        (self.folder / path).write_text(content.replace(before, text + before))

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run Python on the copy, in a folder."""
        path = os.environ | {"PYTHONPATH": f"{self.folder}:{self.folder / 'packages/dvcfleet'}"}
        return subprocess.run([*python(), *arguments], cwd=folder, env=path, capture_output=True, text=True)
