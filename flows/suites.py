"""Ready comparisons: folders of `suites/` with a params.yaml each, one of which is put in place of the root's."""

import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dvcfleet.repository import opened, write_lock
from merganser.config.loading import load_params
from merganser.errors import InputError, did_you_mean
from merganser.outputs import replacing

SUITES = Path("suites")
PARAMS = Path("params.yaml")
EXAMPLES = Path("examples")
IGNORED = EXAMPLES / ".dvcignore"


@dataclass(frozen=True)
class Suite:
    """A suite as it is listed; `mistake`: why its params.yaml is refused, in place of what it would say."""

    name: str
    in_use: bool
    family: str = ""
    tasks: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    mistake: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the suite as plain data; its keys are stable."""
        return asdict(self)


def root_of(path: Path) -> Path:
    """Return the DVC repository that a path lies in."""
    path = path.resolve()
    for folder in (path, *path.parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise InputError(f"{path}: not in a DVC repository; name one by --repo")


def suite_names(root: Path) -> list[str]:
    """List the folders of `suites/` that hold a params.yaml."""
    return sorted(path.parent.name for path in (root / SUITES).glob(f"*/{PARAMS}"))


def describe(root: Path, name: str) -> Suite:
    """Read a suite's params.yaml, and tell whether the root's is the same."""
    path = root / SUITES / name / PARAMS
    in_use = _content(root / PARAMS) == _content(path)
    try:
        params = load_params(path)
    except InputError as error:
        return Suite(name, in_use, mistake=str(error))
    return Suite(name, in_use, params.base.family, tuple(params.tasks), tuple(params.methods))


def use(root: Path, name: str, force: bool = False) -> Suite:
    """Put a suite's params.yaml in place of the root's; what was computed stays in DVC's cache.

    DVC ignores the examples that it does not read: `dvc status` would list their stages as never run. Raises
    InputError for an unknown or broken suite, and where the root's params.yaml has changes that are nowhere else;
    BusyError while a run is at work.
    """
    names = suite_names(root)
    if name not in names:
        known = f"there are {', '.join(names)}" if names else f"{root / SUITES} has none"
        raise InputError(f"no suite is called {name!r}{did_you_mean(name, names)}; {known}")
    suite = describe(root, name)
    if suite.mistake:
        raise InputError(suite.mistake)
    with opened(root) as repo, write_lock(repo):
        if not force and not _is_kept(root, names):
            raise InputError(
                f"{PARAMS}: has changes that are in no commit; commit it or copy it to a folder of {SUITES}/, "
                "or say --force to lose them"
            )
        with open(root / SUITES / name / PARAMS, "rb") as source, replacing(root / PARAMS) as out:
            shutil.copyfileobj(source, out)
        ignore_unused_examples(root)
    return suite


def ignore_unused_examples(root: Path) -> None:
    """Have DVC look for stages only in the folders of examples that the root's params.yaml reads from."""
    read = (root / PARAMS).read_text(encoding="utf-8")
    examples = sorted(path.parent.relative_to(root) for path in (root / EXAMPLES).glob("**/dvc.yaml"))
    unused = [folder for folder in examples if f"{folder.as_posix()}/" not in read]
    lines = [f"/{folder.relative_to(EXAMPLES).as_posix()}\n" for folder in unused if folder.parent not in unused]
    if examples:
        with replacing(root / IGNORED) as out:
            out.write(
                "".join(["# What params.yaml does not read; `merganser use` writes this file.\n", *lines]).encode()
            )


def _is_kept(root: Path, names: list[str]) -> bool:
    """Tell whether the root's params.yaml can be had again: it is that of a suite, or as git has it, or not there."""
    content = _content(root / PARAMS)
    if content is None or any(content == _content(root / SUITES / name / PARAMS) for name in names):
        return True
    git = ["git", "show", f"HEAD:./{PARAMS}"]
    try:
        committed = subprocess.run(git, cwd=root, capture_output=True, check=False)
    except FileNotFoundError:  # git is not installed
        return False
    return committed.returncode == 0 and committed.stdout == content


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
