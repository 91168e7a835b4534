"""The same repository twice: `dvc repro` runs in one, the engine in the other, and all that they leave is compared."""

import hashlib
import io
import logging
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from rich.console import Console

from dvcfleet.errors import UserError
from dvcfleet.options import EVERYTHING, Options
from dvcfleet.run import run as run_stages
from tests.support import copy_repository

# A stage's command begins with this and its name: which commands ran is noted outside of the repository.
SAY = "echo $DVC_STAGE >> $DVC_ROOT/../ran"
OURS, THEIRS = "ours", "theirs"
REPOSITORY = "repository"
# Of what is under .dvc only the cache is compared; the engine has a folder of its own.
_STATE = (".git", ".dvc", ".dvcfleet")
# The options of the engine that are not `dvc repro`'s.
_OWN = ("in_order", "prune", "fetch_results", "save_experiment", "folder")


class Twins:
    """A repository with these files, twice in a folder, if they are not there yet; `added` are files for `dvc add`."""

    def __init__(self, folder: Path, files: dict[str, str], added: tuple[str, ...] = ()) -> None:
        self.folder, self.said = folder, ""
        if folder.exists():
            return
        root = self.at(THEIRS)
        root.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        with Repo.init(str(root)):
            pass
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        if added:
            with chdir(root), Repo() as repo:
                repo.add(list(added))
        self.at(OURS).parent.mkdir()
        copy_repository(root, self.at(OURS))

    def at(self, side: str) -> Path:
        """Return one of the two."""
        return self.folder / side / REPOSITORY

    def write(self, name: str, text: str) -> None:
        """Write a file in both."""
        for side in (OURS, THEIRS):
            path = self.at(side) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(text)

    def both(self, options: Options = EVERYTHING, folder: str = ".") -> dict[str, tuple[Any, Any]]:
        """Run both, from a folder of the repository; return in what they differ: DVC's, and ours."""
        theirs = {"succeeded": self._dvc(options, folder), "ran": self.ran(THEIRS), **left(self.at(THEIRS))}
        ours = {"succeeded": self._engine(options, folder), "ran": self.ran(OURS), **left(self.at(OURS))}
        self.did = theirs["ran"]
        if not theirs["succeeded"]:
            self._same_gitignores(theirs, ours)
        differ = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        return {key: (theirs.get(key), ours.get(key)) for key in differ}

    def _same_gitignores(self, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        """Give DVC's repository the other's .gitignore files: after a failure it takes back its additions."""
        for name in [name for name in {**theirs, **ours} if name.endswith(".gitignore")]:
            here, there = self.at(OURS) / name, self.at(THEIRS) / name
            there.write_text(here.read_text() if here.exists() else "")
            theirs.pop(name, None)
            ours.pop(name, None)

    def ran(self, side: str) -> list[str]:
        """Return the names of the stages whose commands ran since this was last asked, in no order."""
        note = self.at(side).parent / "ran"
        names = note.read_text().split() if note.exists() else []
        note.unlink(missing_ok=True)
        return sorted(names)

    def _dvc(self, options: Options, folder: str) -> bool:
        asked = {key: value for key, value in vars(options).items() if value and key not in _OWN}
        asked["targets"] = list(options.targets)
        asked["run_cache"] = not asked.pop("no_run_cache", False)
        logging.getLogger("dvc").setLevel(logging.CRITICAL)
        with chdir(self.at(THEIRS) / folder):
            try:
                with Repo() as repo:
                    repo.reproduce(on_error="keep-going", **asked)
            except DvcException as error:
                self.said = repr(error)
                return False
        return True

    def _engine(self, options: Options, folder: str) -> bool:
        text = io.StringIO()
        console = Console(file=text, highlight=False, width=1000)
        try:
            code = run_stages(options, repo=self.at(OURS) / folder, workers=2, console=console)
        except UserError as error:
            print(error, file=text)
            code = 2
        self.said += f"\n{text.getvalue()}"
        return code == 0


def left(root: Path) -> dict[str, Any]:
    """Return what a run left: each file of the workspace and of DVC's cache with its kind, mode and content."""
    found: dict[str, Any] = {}
    for path in (*_files(root), *_files(root / ".dvc/cache")):
        name, info = path.relative_to(root).as_posix(), path.lstat()
        if path.is_symlink():
            content: Any = os.path.relpath(os.readlink(path), root)
        elif path.name in (".gitignore", "dvc.lock") or path.suffix == ".dvc":
            content = path.read_text()
        else:
            content = hashlib.md5(path.read_bytes()).hexdigest()
        if "runs" in path.parts:
            content = path.read_text()
        found[name] = (stat.filemode(info.st_mode), info.st_nlink, content)
    return found


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name not in _STATE]
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        yield from (Path(place) / name for name in (*names, *links))
