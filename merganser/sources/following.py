"""Follow branches: pin a pointer to the branch's latest commit."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from merganser.errors import InputError
from merganser.outputs import replacing
from merganser.sources.hub import (
    check_entries,
    head_of,
    hub_api,
    hub_errors,
    hub_refusal,
    list_repository_files,
    missing,
    names_at,
)
from merganser.sources.named import HEAD
from merganser.sources.pointers import HubPointer, RepoType, read_pointer, repositories

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

_NOT_READ = (".gitattributes",)  # of a data set; all else may change what is loaded


class HubAwayError(Exception):
    """The hub does not answer."""


def follow(source: Path, repo_type: RepoType) -> dict[str, str]:
    """Pin a pointer file to the latest commit of its branch, if the files that we read differ there.

    Returns the new revisions by repository; empty if nothing changes, or if it follows no branch. Raises InputError
    if the repository or branch does not exist, and HubAwayError if the hub does not answer.
    """
    named = repositories(read_pointer(source))
    heads = {member: head for member, pointer in named.items() if (head := _moved(source, pointer, repo_type))}
    if heads:
        pin(source, heads, keep_following=True)
    return {named[member].hub: head for member, head in heads.items()}


def _moved(source: Path, pointer: HubPointer, repo_type: RepoType) -> str | None:
    """Return the latest commit of the followed branch, if the files that we read differ there."""
    if pointer.follow is None:
        return None
    api = hub_api()
    with _asking(source, pointer, pointer.follow):
        head = head_of(api, pointer.hub, pointer.follow, repo_type)
        return head if _differs(api, pointer, head, repo_type, source) else None


@contextmanager
def _asking(source: Path, pointer: HubPointer, revision: str) -> Iterator[None]:
    """Raise InputError if the hub lacks or refuses a repository at a revision, HubAwayError if it does not answer."""
    from huggingface_hub.errors import HTTPError

    try:
        yield
    except hub_errors() as error:
        raise InputError(missing(source, pointer.hub, revision, error)) from error
    except (HTTPError, OSError) as error:
        if refused := hub_refusal(source, pointer.hub, error):
            raise InputError(refused) from error
        raise HubAwayError(f"{source}: the hub does not answer ({type(error).__name__})") from error


@dataclass(frozen=True)
class Seen:
    """A source as its hub shows it: the branch's latest commit, and the bytes to download."""

    head: str
    size: int


def look(source: Path, pointer: HubPointer, repo_type: RepoType) -> Seen:
    """Ask the hub for the source of a pointer; for a pinned one also for the latest commit of main.

    Raises InputError if the repository, revision or files do not exist, HubAwayError if the hub does not answer.
    """
    api, branch = hub_api(), pointer.follow or HEAD
    with _asking(source, pointer, branch):
        head = head_of(api, pointer.hub, branch, repo_type)
    revision = pointer.revision or head
    with _asking(source, pointer, revision):
        files = files_at(api, pointer, revision, repo_type, source)
    return Seen(head, sum(file.size for file in files.values()))


def pin(
    source: Path, revisions: Mapping[str, str], *, keep_following: bool = False, within: Iterable[str] = ()
) -> None:
    """Pin a pointer file's repositories, by member of the group, to commits; the rest of the file stays.

    They stop following a branch, unless `keep_following`. `within`: the pointer's place in a file of many.
    """
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 10_000
    content = yaml.load(source.read_text(encoding="utf-8"))
    pointer = reduce(lambda table, key: table[key], within, content)
    for member, revision in revisions.items():
        place = pointer["group"][member] if member else pointer
        place["revision"] = revision
        if not keep_following:
            place.pop("follow", None)
    with replacing(source) as file:
        yaml.dump(content, file)


def _differs(api: "HfApi", pointer: HubPointer, head: str, repo_type: RepoType, source: Path) -> bool:
    from huggingface_hub.errors import RevisionNotFoundError

    if pointer.revision in (None, head):
        return pointer.revision is None
    try:
        before = _contents(api, pointer, str(pointer.revision), repo_type, source)
    except RevisionNotFoundError:  # the branch was rewritten
        return True
    return before != _contents(api, pointer, head, repo_type, source)


def _contents(api: "HfApi", pointer: HubPointer, revision: str, repo_type: RepoType, source: Path) -> dict[str, str]:
    """Return the checksum of each file to download at a commit."""
    files = files_at(api, pointer, revision, repo_type, source)
    return {name: file.lfs.sha256 if file.lfs else file.blob_id for name, file in files.items()}


def files_at(
    api: "HfApi", pointer: HubPointer, revision: str, repo_type: RepoType, source: Path
) -> dict[str, "RepoFile"]:
    """Return each file to download at a commit, by its name relative to the pointer's folder."""
    files = list_repository_files(api, pointer.hub, revision, repo_type)
    if repo_type == "dataset":
        taken = {name: file for name, file in files.items() if name not in _NOT_READ and _is_read(name, pointer, files)}
    else:
        place, names, _ = names_at(pointer, files, source)
        taken = {name: files[f"{place}/{name}" if place else name] for name in names}
    check_entries(taken.values(), source)
    return taken


def _is_read(name: str, pointer: HubPointer, names: Iterable[str]) -> bool:
    """Tell whether a data set's file is read: not if it is in another configuration's folder."""
    chosen = pointer.name if isinstance(pointer.name, list) else [pointer.name]
    own = tuple(f"{each}/" for each in chosen)
    return "/" not in name or name.startswith(own) or not any(each.startswith(own) for each in names)
