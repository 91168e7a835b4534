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
COPIED = ("merganser", "flows", "tasks", "tests/laws", "tests/evaluation", "suites", "published")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")


class Copy:
    """A copy of the code; everything else that its tests read is a link."""

    def __init__(self, chapter: str, folder: Path) -> None:
        self.chapter, self.folder, self.added = CHAPTERS[chapter], folder, set[str]()
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))
        for path in (*ROOT.glob("tests/*"), ROOT / "packages", ROOT / "pyproject.toml"):
            if not (link := folder / path.relative_to(ROOT)).exists():
                link.symlink_to(path)

    def add(self, path: str, text: str) -> None:
        """Write a new file into a folder that the chapter names."""
        assert f"{Path(path).parent}/" in self.chapter, path
        assert not (self.folder / path).exists(), path
        (self.folder / path).write_text(text.lstrip())
        self.added.add(path)

    def insert(self, path: str, text: str, before: str) -> None:
        """Insert text before the one place where a file that the chapter names has these words."""
        place = Path(path)
        assert path in self.added or place.name in self.chapter or f"{place.parent}/" in self.chapter, path
        content = (self.folder / path).read_text()
        assert content.count(before) == 1, (path, before)
        (self.folder / path).write_text(content.replace(before, text + before))

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run Python on the copy, in a folder."""
        path = os.environ | {"PYTHONPATH": f"{self.folder}:{self.folder / 'packages/dvcfleet'}"}
        return subprocess.run([*python(), *arguments], cwd=folder, env=path, capture_output=True, text=True)
