"""Ready-made comparisons: the files of `suites/`, one of which becomes the root's params.yaml."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dvcfleet.disk import sync_file_systems
from dvcfleet.git import git_if_any
from dvcfleet.repository import opened, write_lock
from merganser.config import PARAMS
from merganser.config.completing import addition_names, additions, completed, filled
from merganser.config.loading import check_params, check_shape
from merganser.config.mistakes import mistakes_in
from merganser.config.params import Params
from merganser.config.sections import Strict, Text
from merganser.errors import InputError, did_you_mean
from merganser.flows.suites.files import (
    ABOUT,
    GRIDS,
    POINTERS,
    SUITES,
    pointer_text,
    pointers,
    read_suite,
    shipped,
    suite_names,
    suite_params,
    suite_text,
    with_head,
    without_head,
)
from merganser.flows.suites.kept_lock_files import keep_lock_file, restore_lock_file
from merganser.flows.suites.published import FIGURES, PAPERS, figures_of, figures_text, suites_with_figures
from merganser.limits import read_yaml
from merganser.outputs import replacing
from merganser.sources.pointers import RepoType

EXAMPLES, DVC_YAML = Path("examples"), "dvc.yaml"
IGNORED = EXAMPLES / ".dvcignore"
# What git ignores in a clone: the outputs of the examples' stages.
_MADE_BY_RUNS = shutil.ignore_patterns("__pycache__", "datasets", "hub", "ratings", "dvc.lock")
ROW = ("", "suite", "family", "tasks", "entries", "GPU", "download")
MOST_TASKS = 8  # that are named in a row


class SuiteCost(Strict):
    """The expected cost of a suite: `about` in its file. `gpu`: whether it is needed, saves days, or does not help."""

    title: Text
    download: Text
    gpu: Literal["no", "helps", "needed"]


@dataclass(frozen=True)
class SuiteListing:
    """A suite in the list of all; `mistake`: why its params.yaml is refused, if it is. As JSON its keys are stable."""

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


def suite_row(suite: SuiteListing) -> tuple[str, ...]:
    """Return a suite's line in the table of all; if its params.yaml is refused, the reason."""
    tasks = suite.tasks if len(suite.tasks) <= MOST_TASKS else (f"{len(suite.tasks)}:", *suite.tasks[:3], "...")
    costs = suite.mistake.splitlines()[0] if suite.mistake else suite.download
    in_use = "*" if suite.in_use else ""
    return in_use, suite.name, suite.family, " ".join(tasks), str(len(suite.entries)), suite.gpu, costs


def list_suites(root: Path) -> list[SuiteListing]:
    """Read all suites, and tell for each whether the root's params.yaml, or its grids, are the same.

    Checks names, keys and types; `load_suite` also applies the methods' own checks of values.
    """
    here = _content(root / PARAMS)
    return [_listing(root, name, here) for name in suite_names(root)]


def _listing(root: Path, name: str, here: Any) -> SuiteListing:
    try:
        content, whole = read_suite(root, name), suite_params(root, name)[0]
        params, about = check_shape(whole, SUITES / f"{name}.yaml"), _about(name, content.get(ABOUT))
    except InputError as error:
        return SuiteListing(name, False, mistake=str(error))
    return SuiteListing(
        name,
        any(here == suite_params(root, name, grids=grids)[0] for grids in (False, True)[: 1 + (GRIDS in content)]),
        params.base.family,
        tuple(params.tasks),
        tuple(params.methods),
        **(about.model_dump() if about else {}),
        grids=GRIDS in content,
    )


def load_suite(root: Path, name: str, *, grids: bool = False) -> Params:
    """Read and check a suite's params.yaml, or its grids; raise InputError that lists all mistakes."""
    return check_params(suite_params(root, name, grids=grids)[0], SUITES / f"{name}.yaml")


def about_mistakes(name: str, content: Any) -> list[str]:
    """List the mistakes in a suite's `about`, if it has one."""
    mistakes = [] if content is None else mistakes_in(content, SuiteCost, (ABOUT,))
    return [f"{SUITES / name}.yaml: {mistake}" for mistake in mistakes]


def _about(name: str, content: Any) -> SuiteCost | None:
    if mistakes := about_mistakes(name, content):
        raise InputError("\n".join(mistakes))
    return None if content is None else SuiteCost.model_validate(content)


def use(root: Path, name: str, force: bool = False, *, grids: bool = False) -> Params:
    """Replace the root's params.yaml by a suite's, and write the pointers and published figures that it names.

    Results stay in DVC's cache. `grids`: the suite's second comparison, whose parameters are searched on validation
    data. DVC ignores the examples that it does not read: `dvc status` would list their stages as never run. Raises
    InputError for an unknown or broken suite, and if the root's params.yaml has changes that are nowhere else;
    BusyError while a run is at work.
    """
    from merganser.config.points import write_points  # imports torch

    check_name(root, name)
    params, text = load_suite(root, name, grids=grids), suite_text(root, name, grids=grids)
    with opened(root) as repo, write_lock(repo):
        if not force and not _is_kept(root):
            raise InputError(
                f"{PARAMS}: has changes that are in no commit; commit it or copy it to a file of {SUITES}/, "
                "or say --force to lose them"
            )
        bring_examples(root, params)  # before their pointers, which lie in these folders
        write_pointers(root, params)  # before params.yaml, which a mistake in their tables leaves as it is
        write_figures(root, params)
        keep_lock_file(repo, root / PARAMS)
        with replacing(root / PARAMS) as out:
            out.write(with_head(text, name, grids=grids).encode())
        write_points(params, root)
        if added := suite_params(root, name, grids=grids)[1]:
            print(
                f"{PARAMS}: added the values that {SUITES}/{name}.yaml leaves out: {addition_names(added)}",
                file=sys.stderr,
            )
        ignore_unused_examples(root)
        restore_lock_file(repo, root / PARAMS)
        sync_file_systems([repo.root_dir, repo.scm.root_dir])
    return params


def write_pointers(root: Path, params: Params) -> None:
    """Write missing pointer files from the table of pointers; name existing ones, maybe edited, that differ from it."""
    table = pointers(root)
    for path in (path for path in sources_of(params) if path in table):
        if not (root / path).exists():
            _write_new(root / path, pointer_text(table[path]))
        elif not is_the_tables(root, path):
            print(f"{path}: kept, although it differs from {POINTERS}", file=sys.stderr)


def write_figures(root: Path, params: Params) -> None:
    """Write the file of published figures if it is missing; name an existing one, maybe edited, that differs."""
    path = Path(params.published.source) if params.published else None
    if path is None or (figures := figures_at(root, path)) is None:
        return
    if not (root / path).exists():
        _write_new(root / path, figures_text(figures))
    elif read_yaml(root / path) != figures:
        print(f"{path}: kept, although it differs from {PAPERS}; remove it to get that one", file=sys.stderr)


def figures_at(root: Path, path: Path) -> dict[str, Any] | None:
    """Return the figures that `use` writes to a path, `suites/NAME/published.yaml`; None for any other path."""
    name = path.parent.name
    if path != SUITES / name / FIGURES or name not in suites_with_figures(root):
        return None
    return figures_of(root, name, load_suite(root, name))


def _write_new(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as out:
        out.write(text.encode())


def is_the_tables(root: Path, path: Path) -> bool:
    """Tell whether a pointer file equals the table's, apart from the commit of a followed branch."""
    return bool(_followed(read_yaml(root / path)) == _followed(pointers(root)[path]))


def _followed(pointer: Any) -> Any:
    """Return a pointer without the commit that a run found on its branch."""
    if not isinstance(pointer, dict):
        return pointer
    return {key: _followed(each) for key, each in pointer.items() if key != "revision" or "follow" not in pointer}


def sources_of(params: Params) -> dict[Path, RepoType]:
    """Return the sources of models and data in a params.yaml, and what each is used for."""
    base = [] if params.base_source is None else [str(params.base_source)]
    named = [*base, *(each for task in params.tasks.values() for each in (task.source, task.data.source))]
    named += [task.head for task in params.unseen.values() if task.has_head]
    data = [task.data.source for task in params.with_data.values()]
    return {Path(source): "dataset" if source in data else "model" for source in [*named, *data]}


def check_name(root: Path, name: str) -> None:
    """Raise InputError for an unknown suite, with the nearest name."""
    names = suite_names(root)
    if name not in names:
        known = f"there are {', '.join(names)}" if names else f"{root / SUITES} has none"
        raise InputError(f"no suite is called {name!r}{did_you_mean(name, names)}; {known}")


def examples_of(params: Params, root: Path) -> list[Path]:
    """List what makes the examples that a params.yaml reads: folders in `root`, and their stages' inputs elsewhere."""
    waiting = {EXAMPLES / source.parts[1] for source in sources_of(params) if source.parts[:1] == EXAMPLES.parts}
    files = set[Path]()
    while waiting:
        files.add(example := waiting.pop())
        waiting |= _read_by(root, example) - files
    return sorted(files)


def _read_by(root: Path, example: Path) -> set[Path]:
    """List other folders of examples, and the files next to them, that an example's stages depend on."""
    file = root / example / DVC_YAML
    stages = read_yaml(file)["stages"].values() if file.is_file() else ()
    deps = (dep for stage in stages for dep in stage.get("do", stage).get("deps", ()))
    paths = (Path(os.path.normpath(EXAMPLES / dep)) for dep in deps if "$" not in dep)
    return {EXAMPLES / path.parts[1] if path.is_relative_to(EXAMPLES) else path for path in paths}


def bring_examples(root: Path, params: Params) -> None:
    """Write the code that makes the examples that a params.yaml reads; keep existing files."""
    for path in examples_of(params, shipped()):
        if (root / path).exists():
            continue
        if (shipped() / path).is_dir():
            shutil.copytree(shipped() / path, root / path, ignore=_MADE_BY_RUNS)
        elif (shipped() / path).is_file():
            shutil.copyfile(shipped() / path, root / path)


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


def _is_kept(root: Path) -> bool:
    """Tell whether the root's params.yaml can be restored: it is missing, as in git, or a suite's."""
    if not (root / PARAMS).is_file():
        return True
    here = _completed((root / PARAMS).read_bytes().decode(errors="surrogateescape"))
    committed = git_if_any(root, "show", f"HEAD:./{PARAMS}")
    if committed is not None and _completed(committed) == here:
        return True
    return any(without_head(here) == text for text in _texts(root))


def _texts(root: Path) -> Iterator[str]:
    """Yield the params.yaml texts of all suites and their grids, without broken ones."""
    for name in suite_names(root):
        for grids in (False, True):
            with suppress(InputError):
                yield suite_text(root, name, grids=grids)


def _content(path: Path) -> Any:
    """Return a params.yaml with its defaults; None if it is missing or broken."""
    try:
        content = read_yaml(path) if path.is_file() else None
        return filled(content, additions(content))
    except InputError:
        return None


def _completed(text: str) -> str:
    """Complete a params.yaml with its defaults; return a broken one as it is."""
    try:
        return completed(text, str(PARAMS))[0]
    except InputError:
        return text
