"""Ready comparisons: folders of `suites/` with a params.yaml each, one of which is put in place of the root's."""

import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dvcfleet.repository import opened, write_lock
from flows.kept_locks import keep_lock, restore_lock
from merganser.config.completing import completed
from merganser.config.explaining import explain
from merganser.config.loading import complete_file, load_params
from merganser.config.params import Strict, Text
from merganser.errors import InputError, did_you_mean
from merganser.limits import read_yaml
from merganser.outputs import replacing

SUITES = Path("suites")
PARAMS = Path("params.yaml")
GRIDS = Path("grids.yaml")  # of a suite: its second params.yaml, with parameters searched on validation data
ABOUT = Path("about.yaml")
EXAMPLES = Path("examples")
IGNORED = EXAMPLES / ".dvcignore"


class About(Strict):
    """What a suite costs before it is begun: `suites/NAME/about.yaml`.

    `download`: how much, in words; `gpu`: whether it is needed, makes hours out of days, or is of no use.
    """

    title: Text
    download: Text
    gpu: Literal["no", "helps", "needed"]


@dataclass(frozen=True)
class Suite:
    """A suite as it is listed; `mistake`: why its params.yaml is refused, in place of what it would say."""

    name: str
    in_use: bool
    family: str = ""
    tasks: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    mistake: str = ""
    title: str = ""
    download: str = ""
    gpu: str = ""
    grids: bool = False

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


def describe(root: Path, name: str, file: Path = PARAMS) -> Suite:
    """Read a suite's params.yaml, and tell whether the root's is the same."""
    folder = root / SUITES / name
    in_use = _content(root / PARAMS) in (_content(folder / PARAMS), _content(folder / GRIDS) or b"")
    try:
        params, about = load_params(folder / file), _read_about(folder / ABOUT)
    except InputError as error:
        return Suite(name, in_use, mistake=str(error))
    return Suite(
        name,
        in_use,
        params.base.family,
        tuple(params.tasks),
        tuple(params.methods),
        **(about.model_dump() if about else {}),
        grids=(folder / GRIDS).is_file(),
    )


def _read_about(path: Path) -> About | None:
    if not path.is_file():
        return None
    try:
        return About.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError("\n".join(f"{path}: {explain(mistake, About)}" for mistake in error.errors())) from error


def use(root: Path, name: str, force: bool = False, *, grids: bool = False) -> Suite:
    """Put a suite's params.yaml in place of the root's; what was computed stays in DVC's cache.

    `grids`: its grids.yaml, where parameters are searched on validation data. DVC ignores the examples that it does
    not read: `dvc status` would list their stages as never run. Raises InputError for an unknown or broken suite, and
    where the root's params.yaml has changes that are nowhere else; BusyError while a run is at work.
    """
    check_name(root, name)
    file = GRIDS if grids else PARAMS
    if not (root / SUITES / name / file).is_file():
        raise InputError(f"{SUITES}/{name} has no {file}: it searches nothing; leave --grids out")
    suite = describe(root, name, file)
    if suite.mistake:
        raise InputError(suite.mistake)
    with opened(root) as repo, write_lock(repo):
        if not force and not _is_kept(root, suite_names(root)):
            raise InputError(
                f"{PARAMS}: has changes that are in no commit; commit it or copy it to a folder of {SUITES}/, "
                "or say --force to lose them"
            )
        keep_lock(repo, root / PARAMS)
        with open(root / SUITES / name / file, "rb") as source, replacing(root / PARAMS) as out:
            shutil.copyfileobj(source, out)
        if note := complete_file(root / PARAMS):
            print(note, file=sys.stderr)
        ignore_unused_examples(root)
        restore_lock(repo, root / PARAMS)
    return suite


def check_name(root: Path, name: str) -> None:
    """Raise InputError for the name of no suite, with the nearest one."""
    names = suite_names(root)
    if name not in names:
        known = f"there are {', '.join(names)}" if names else f"{root / SUITES} has none"
        raise InputError(f"no suite is called {name!r}{did_you_mean(name, names)}; {known}")


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
    if content is None or any(
        content == _content(root / SUITES / name / file) for name in names for file in (PARAMS, GRIDS)
    ):
        return True
    git = ["git", "show", f"HEAD:./{PARAMS}"]
    try:
        committed = subprocess.run(git, cwd=root, capture_output=True, check=False)
    except FileNotFoundError:  # git is not installed
        return False
    return committed.returncode == 0 and _completed(committed.stdout) == content


def _content(path: Path) -> bytes | None:
    return _completed(path.read_bytes()) if path.is_file() else None


def _completed(content: bytes) -> bytes:
    """Write into a params.yaml what it leaves out; return one that is broken as it is."""
    try:
        return completed(content.decode(), str(PARAMS))[0].encode()
    except (InputError, UnicodeDecodeError):
        return content
