"""Sources that move: put a pointer that follows a branch at the commit where the branch is now."""

from collections.abc import Iterable, Mapping
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
    """Pin what a pointer file follows to the branch's commit, if what we read of it differs there.

    Returns the new revisions by repository; none where the pointer stays as it is, or follows nothing. Raises
    InputError where the hub has no such repository or branch, and HubAwayError where it does not answer.
    """
    named = repositories(read_pointer(source))
    heads = {member: head for member, pointer in named.items() if (head := _moved(source, pointer, repo_type))}
    if heads:
        pin(source, heads, keep_following=True)
    return {named[member].hub: head for member, head in heads.items()}


def _moved(source: Path, pointer: HubPointer, repo_type: RepoType) -> str | None:
    """Return the commit of the branch that is followed, if what is read differs there."""
    from huggingface_hub.errors import HTTPError

    if pointer.follow is None:
        return None
    api = hub_api()
    try:
        head = head_of(api, pointer.hub, pointer.follow, repo_type)
        if not _differs(api, pointer, head, repo_type, source):
            return None
    except hub_errors() as error:
        raise InputError(missing(source, pointer.hub, pointer.follow, error)) from error
    except (HTTPError, OSError) as error:
        raise HubAwayError(f"{source}: the hub does not answer ({type(error).__name__})") from error
    return head


@dataclass(frozen=True)
class Seen:
    """What a hub says of a source: the commit its branch is at, and the bytes of what is fetched."""

    head: str
    size: int


def look(source: Path, pointer: HubPointer, repo_type: RepoType) -> Seen:
    """Ask the hub for a source as its pointer names it; of a pinned one for the commit of main too.

    Raises InputError where the hub has no such repository, revision or files, HubAwayError where it does not answer.
    """
    from huggingface_hub.errors import HTTPError

    api = hub_api()
    branch = pointer.follow or HEAD
    asked = branch
    try:
        head = head_of(api, pointer.hub, branch, repo_type)
        asked = pointer.revision or head
        files = files_at(api, pointer, asked, repo_type, source)
    except hub_errors() as error:
        raise InputError(missing(source, pointer.hub, asked, error)) from error
    except (HTTPError, OSError) as error:
        refused = hub_refusal(source, pointer.hub, error)
        if refused is not None:
            raise InputError(refused) from error
        raise HubAwayError(f"{source}: the hub does not answer ({type(error).__name__})") from error
    return Seen(head, sum(file.size for file in files.values()))


def pin(
    source: Path, revisions: Mapping[str, str], *, keep_following: bool = False, within: Iterable[str] = ()
) -> None:
    """Pin a pointer file's repositories, by member of the group, to commits, and leave the rest of it as it stands.

    They follow no branch any more, unless they are to be kept following. `within`: where the pointer stands in a file
    of many.
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
    """Return the checksum of each file that would be fetched at a commit."""
    files = files_at(api, pointer, revision, repo_type, source)
    return {name: file.lfs.sha256 if file.lfs else file.blob_id for name, file in files.items()}


def files_at(
    api: "HfApi", pointer: HubPointer, revision: str, repo_type: RepoType, source: Path
) -> dict[str, "RepoFile"]:
    """Return each file that would be fetched at a commit, by its name from the pointer's folder on."""
    files = list_repository_files(api, pointer.hub, revision, repo_type)
    if repo_type == "dataset":
        taken = {name: file for name, file in files.items() if name not in _NOT_READ and _is_read(name, pointer, files)}
    else:
        place, names, _ = names_at(pointer, files, source)
        taken = {name: files[f"{place}/{name}" if place else name] for name in names}
    check_entries(taken.values(), source)
    return taken


def _is_read(name: str, pointer: HubPointer, names: Iterable[str]) -> bool:
    """Tell whether a file of a data set is read: not one in another configuration's folder, if each has its own."""
    chosen = pointer.name if isinstance(pointer.name, list) else [pointer.name]
    own = tuple(f"{each}/" for each in chosen)
    return "/" not in name or name.startswith(own) or not any(each.startswith(own) for each in names)
