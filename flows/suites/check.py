"""Check a suite before any download; online, also check that its sources exist, and pin them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from dvcfleet.disk import sync_file_systems
from merganser.config.mistakes import Mistake, mistakes_at
from merganser.config.params import Params
from merganser.config.published import parse_published, published_mistakes, read_published
from merganser.config.tasks import group_mistakes
from merganser.errors import InputError
from merganser.flows.suites.files import ABOUT, GRIDS, POINTERS, SUITES, pointers, read_suite
from merganser.flows.suites.ready import (
    EXAMPLES,
    about_mistakes,
    check_name,
    figures_at,
    is_the_tables,
    load_suite,
    sources_of,
)
from merganser.sources.following import HubAwayError, Seen, look, pin
from merganser.sources.pointers import (
    POINTER_SUFFIXES,
    HubPointer,
    PackagePointer,
    Pointer,
    RepoType,
    pointer_of,
    read_pointer,
    repositories,
    verified_package_path,
)


@dataclass(frozen=True)
class SourceCheck:
    """A source of a suite; if its hub was asked, the `bytes` to download and the branch's commit `head`."""

    path: str
    hub: str | None
    revision: str | None
    state: str
    bytes: int | None = None
    head: str | None = None


@dataclass(frozen=True)
class SuiteCheck:
    """The result of a check; `mistakes` keep the suite from running, `notes` do not. As JSON its keys are stable."""

    name: str
    mistakes: tuple[str, ...]
    notes: tuple[str, ...]
    sources: tuple[SourceCheck, ...]


def validate_suite(root: Path, name: str, *, online: bool = False, pin_them: bool = False) -> SuiteCheck:
    """Check a suite's choices, pointers and published figures; if `online`, ask the hubs about its sources.

    `pin_them` writes each followed branch's current commit into its pointer. Raises InputError for an unknown
    suite.
    """
    check_name(root, name)
    try:
        params, content = load_suite(root, name), read_suite(root, name)
        searched = [load_suite(root, name, grids=True)] if GRIDS in content else []
    except InputError as error:
        return SuiteCheck(name, tuple(str(error).splitlines()), (), ())
    mistakes = [*map(str, _class_mistakes(params)), *map(str, _group_mistakes(root, params))]
    mistakes += [*_published_mistakes(root, params, searched), *about_mistakes(name, content.get(ABOUT))]
    notes = [] if ABOUT in content else [f"{SUITES}/{name}.yaml: {ABOUT}: missing; describe the suite and its cost"]
    sources = []
    for path, repo_type in sources_of(params).items():
        try:
            sources += _sources(root, path, repo_type, online=online, pin_them=pin_them)
        except HubAwayError as away:
            notes.append(f"{away}; no more hubs are asked")
            online = pin_them = False
            sources += _sources(root, path, repo_type, online=False, pin_them=False)
        except InputError as error:
            mistakes += str(error).splitlines()
    return SuiteCheck(name, tuple(mistakes), tuple(notes), tuple(sources))


def check_lines(checked: SuiteCheck) -> Iterator[str]:
    """Return lines with the result of a check, mistakes first."""
    yield from (f"mistake: {mistake}" for mistake in checked.mistakes)
    yield from (f"note: {note}" for note in checked.notes)
    for source in checked.sources:
        size = "" if source.bytes is None else f", {decimal(source.bytes, precision=2)}"
        yield f"{source.path}: {source.hub or 'on this disk'}{size}: {source.state}"
    known = [source.bytes for source in checked.sources if source.bytes is not None]
    if known:
        yield f"{decimal(sum(known), precision=2)} to download, of {len(known)} sources"
    loose = [source for source in checked.sources if source.hub and source.revision is None]
    if loose:
        yield (
            f"{len(loose)} sources are not pinned: `merganser suites check {checked.name} --pin` writes the commits "
            "of today; a run writes them too, when it starts"
        )
    yield f"{checked.name}: {len(checked.mistakes)} mistakes"


def _sources(root: Path, path: Path, repo_type: RepoType, *, online: bool, pin_them: bool) -> list[SourceCheck]:
    """Return the source at a path, or each source of a group."""
    pointer = _pointer(root, path)
    if pointer is None:
        return [SourceCheck(str(path), None, None, _here(root, path))]
    if not (named := repositories(pointer)):
        (kind, name), (_, version), *_ = pointer
        state = _in_package(pointer, path) if isinstance(pointer, PackagePointer) else f"{version}, not looked up"
        return [SourceCheck(str(path), f"{kind} {name}", version, state)]
    seen = {member: look(root / path, each, repo_type) for member, each in named.items()} if online else {}
    heads = {member: each.head for member, each in seen.items() if pin_them and named[member].follow}
    if heads:
        _pin(root, path, heads)
        named |= {member: named[member].model_copy(update={"revision": head}) for member, head in heads.items()}
    return [_source(path, each, seen.get(member)) for member, each in named.items()]


def _pointer(root: Path, path: Path) -> Pointer | None:
    """Return the target of a source's pointer file: the one here, or the one that `merganser use` would write."""
    table = pointers(root)
    if path in table and not (root / path).exists():
        return pointer_of(table[path], path)
    return read_pointer(root / path) if path.suffix in POINTER_SUFFIXES else None


def _pin(root: Path, path: Path, heads: dict[str, str]) -> None:
    """Pin a pointer in the table of pointers, in the file that `merganser use` wrote, or in both."""
    if path in pointers(root) and (not (root / path).exists() or is_the_tables(root, path)):
        pin(root / POINTERS, heads, within=(str(path.parent), path.stem))
    if (root / path).exists():
        pin(root / path, heads)
    sync_file_systems([root])


def _source(path: Path, pointer: HubPointer, seen: Seen | None) -> SourceCheck:
    size, head = (seen.size, seen.head) if seen else (None, None)
    return SourceCheck(str(path), pointer.hub, pointer.revision, _state(pointer, seen), size, head)


def _in_package(pointer: PackagePointer, path: Path) -> str:
    try:
        verified_package_path(pointer, path)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ")
    return f"{pointer.version} is installed"


def _here(root: Path, path: Path) -> str:
    if (root / path).exists():
        return "there"
    made = any((root / above / "dvc.yaml").is_file() for above in path.parents if EXAMPLES in (above, *above.parents))
    return "a stage makes it" if made else "not there yet: put your own in this place, or change its source"


def _state(pointer: HubPointer, seen: Seen | None) -> str:
    if pointer.revision is None:
        now = f", which is at {seen.head}" if seen else ""
        return f"not pinned, follows {pointer.follow}{now}"
    if seen is None or seen.head == pointer.revision:
        return f"pinned to {pointer.revision}{'' if seen is None else ', the newest'}"
    return f"pinned to {pointer.revision}; its branch is at {seen.head}"


def _class_mistakes(params: Params) -> Iterator[Mistake]:
    """Find classes that look the same in prompts or answers, and heads that mask all but one of theirs."""
    for place, task in (params.with_data | {("tasks", name): task for name, task in params.tasks.items()}).items():
        own = task.data.values
        for key in ("classes", "answers", "templates"):
            named = own.get(key)
            twice = [each for each, count in Counter(named).items() if count > 1] if isinstance(named, list) else []
            if twice:
                yield Mistake((*place, "data", key), f"{', '.join(map(repr, twice))} is listed twice")
            if key != "templates" and isinstance(named, list) and len(named) < 2:
                yield Mistake((*place, "data", key), "give at least two to choose from")


def _group_mistakes(root: Path, params: Params) -> Iterator[Mistake]:
    """Find groups of data sets that a task's keys and its pointer file name differently."""
    for place, task in params.with_data.items():
        source = Path(task.data.source)
        try:
            if source.suffix in POINTER_SUFFIXES and (pointer := _pointer(root, source)):
                yield from group_mistakes(place, task, source, pointer)
        except InputError as error:
            yield from mistakes_at((*place, "data", "source"), error)


def _published_mistakes(root: Path, params: Params, others: Sequence[Params]) -> Iterator[str]:
    if params.published is None:
        return
    source = Path(params.published.source)
    try:
        figures = None if (root / source).exists() else figures_at(root, source)
        published = read_published(root / source) if figures is None else parse_published(figures, source)
        yield from (f"{source}: {mistake}" for mistake in published_mistakes(published, params, *others))
    except (InputError, OSError) as error:
        yield str(error)
