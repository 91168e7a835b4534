"""Objects in DVC's cache and lists of output folders: whether they are whole; pulls; and DVC's ignore rules.

DVC trusts an object of the right name. After a crash of the machine, it may be empty or end too early. Its size says
so, which dvc.lock has for a file, and for all files of a folder together. One whose size is right may still hold other
bytes: those that were written shortly before the crash are removed by `dvcfleet.crash_recovery`.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.protocols import Dependency, Output, Repo, Stage

if TYPE_CHECKING:
    from dvc_data.hashfile.tree import Tree


_MD5 = re.compile("[0-9a-f]{32}")
# DVC 2's hash ignores the kind of line ends: its objects may have other sizes than the files that they stand for.
DVC_2 = "md5-dos2unix"
# After this time, an object that another process is just linking has its content.
_LINKING_S = 0.1


def is_torn(path: Path, hash_name: str = "md5") -> bool:
    """Tell whether an object's content differs from its name; its path ends in the hash."""
    from dvc_data.hashfile.hash import fobj_md5

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest() if hash_name == "md5" else fobj_md5(file, name=hash_name)
    return digest != path.parent.name + path.name.removesuffix(".dir")


def in_cache(out: Output) -> bool:
    """Tell whether DVC's cache has a complete output, with the sizes in dvc.lock."""
    return not out.changed_cache() and is_whole(out)


def is_whole(out: Output) -> bool:
    """Tell whether the cached objects of an output have the sizes in dvc.lock."""
    if not out.hash_info or out.files:
        return True
    return has_whole(out.cache, out.hash_info.value, out.meta.size)


def has_whole(cache: Any, value: str, size: int | None) -> bool:
    """Tell whether a cache has a file or folder of this hash and size; None: any size.

    A cache on another machine is not asked. Objects of DVC 2 may have other line ends and so another size: then the
    content is compared with the name.
    """
    if not is_local(cache):
        return True
    listing = listing_at(Path(cache.oid_to_path(value))) if value.endswith(".dir") else {"": value}
    if listing is None:
        return False
    sizes = [object_size(cache, oid) for oid in listing.values()]
    if None in sizes or size in (None, sum(each or 0 for each in sizes)):
        return None not in sizes
    return cache.hash_name == DVC_2 and not any(
        is_torn(Path(cache.oid_to_path(oid)), DVC_2) for oid in listing.values()
    )


def object_size(cache: Any, oid: str) -> int | None:
    """Return the size of an object; None if it is missing."""
    try:
        return os.stat(cache.oid_to_path(oid)).st_size
    except OSError:
        return None


def is_local(cache: Any) -> bool:
    """Tell whether a cache is a folder on this machine."""
    return bool(cache.fs.protocol == "local")


def remove_torn(cache: Any, sizes: Mapping[str, int | None], *, suspect: bool = False) -> set[str]:
    """Remove the objects whose size differs from the given one, and whose content differs from their name; return them.

    With `suspect`, or without a given size, those of the right size are read too. Raises OSError.
    """
    removed = set[str]()
    if not is_local(cache) or cache.hash_name not in ("md5", DVC_2):
        return removed
    for oid, size in sizes.items():
        object_bytes = object_size(cache, oid)
        if object_bytes is None or (object_bytes == size and not suspect):
            continue
        path = Path(cache.oid_to_path(oid))
        if is_torn(path, cache.hash_name):
            time.sleep(_LINKING_S)
            if path.exists() and is_torn(path, cache.hash_name):
                path.unlink()
                removed.add(oid)
    return removed


def remove_torn_of(out: Output) -> None:
    """Remove the torn objects of an output, so that DVC does not take them for its content."""
    if not out.hash_info or out.files or is_whole(out):
        return
    value, is_folder = out.hash_info.value, out.hash_info.isdir
    listing = (cached_listing(out) if is_folder else None) or {}
    remove_torn(out.cache, dict.fromkeys(listing.values()))
    remove_torn(out.cache, {value: None if is_folder else out.meta.size})


def output_cache(out: Output) -> Any:
    """Return the cache for an output; DVC knows none for an output outside the repository."""
    return out.cache if out.is_in_repo else out.local_cache


def cached_listing(out: Output) -> dict[str, str] | None:
    """Return a folder's recorded listing from DVC's cache; None if it is missing or damaged."""
    return listing_at(Path(output_cache(out).oid_to_path(out.hash_info.value)))


def listing_at(path: Path) -> dict[str, str] | None:
    """Return the md5 of each file of a folder by its relative path; None if its listing is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.md5(content).hexdigest() + ".dir" != path.parent.name + path.name:
        return None
    try:
        listing = {entry["relpath"]: entry["md5"] for entry in json.loads(content)}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return listing if all(map(_is_listed, listing, listing.values())) else None


def _is_listed(name: Any, md5: Any) -> bool:
    """Tell whether a list entry names a file inside its folder, and an object."""
    is_object = isinstance(md5, str) and _MD5.fullmatch(md5)
    return bool(is_object and isinstance(name, str) and name and not {"", ".", ".."} & {*name.split("/")})


def listing_error() -> type[Exception]:
    """Return the class of DVC's error for a damaged listing of a folder."""
    from dvc_objects.errors import ObjectFormatError

    return ObjectFormatError


def forget_remote(objects: Any) -> None:
    """Drop DVC's list of the objects that a remote holds; DVC lists them again."""
    from dvc_data.hashfile.db import get_index

    get_index(objects).clear()


def pull_run_cache(repo: Repo, say: Callable[[str], object]) -> None:
    """Copy the remote's run cache into the local one; say so if there is none."""
    from dvc.stage.cache import RunCacheNotSupported

    try:
        repo.stage_cache.pull(None)
    except RunCacheNotSupported as error:
        say(f"the run cache was not pulled: {error}")


def pull_outputs(stage: Stage) -> bool:
    """Restore a stage's recorded outputs, pulled if the cache lacks them; tell whether all are there."""
    from dvc.exceptions import CheckoutError, CollectCacheError

    for out in stage.outs:
        was_there = out.exists
        try:
            _pull(out)
            out.checkout(force=True)
        except (CheckoutError, CollectCacheError, FileNotFoundError):  # the last: of a file damaged on the remote
            if not was_there:  # else it may be somebody's edit, which is set aside
                out.remove()
            return False
    return True


def pull_missing_inputs(stage: Stage) -> None:
    """Pull a stage's missing inputs that other stages write; raise DvcException if the remote lacks them."""
    for dep in stage.deps:
        if dep.protocol == "local" and not dep.exists:
            for out in outputs_near(dep.repo.index.outs_trie, dep):
                inside = dep.fs_path if dep.fs.isin(dep.fs_path, out.fs_path) else None
                _pull(out, inside)
                out.checkout(force=True, filter_info=inside)


def _pull(out: Output, inside: str | None = None) -> None:
    """Pull missing objects of an output, or of a path inside it; DVC does not check their hashes."""
    if not out.changed_cache(filter_info=inside):
        return
    for remote, objects in out.get_used_objs(filter_info=inside).items():
        out.repo.cloud.pull(objects, odb=remote)
        remove_torn(output_cache(out), dict.fromkeys(each.value for each in objects))


_NEVER_DATA = (".git", ".hg", ".dvc")  # folders that DVC ignores without a rule
_BYTECODE = "__pycache__"


def hidden_files(folder: str, visible: Collection[str]) -> Iterator[str]:
    """Yield the files in a folder that are not visible to DVC; a link to a folder counts as a file."""
    known = set(visible)
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NEVER_DATA]
        links = (name for name in folders if os.path.islink(os.path.join(root, name)))
        yield from (path for name in (*names, *links) if (path := os.path.join(root, name)) not in known)


def rules_at(repo: Repo, commit: str | None) -> Callable[[str], bool]:
    """Return a function that tells whether the ignore rules of a commit (default: HEAD) hide a file.

    Without git, or without that commit, only Python's bytecode is ignored, since the rules are not known.
    """
    from dvc.fs.git import GitFileSystem
    from dvc.ignore import DvcIgnoreFilter

    if under_git(repo) and not repo.scm.no_commits:
        for revision in filter(None, (commit, "HEAD")):
            try:
                fs = GitFileSystem(scm=repo.scm, rev=revision)
                top = from_root(repo.scm.root_dir, repo.root_dir)
                rules = DvcIgnoreFilter(fs, fs.normpath(fs.join("/", top)))
            except Exception:  # scmrepo and dulwich raise many kinds for a commit that is gone
                continue
            return lambda path: rules.is_ignored_file(f"/{from_root(repo.scm.root_dir, path)}")
    return lambda path: _BYTECODE in path.split(os.sep)


def outputs_trie(stages: Sequence[Stage]) -> Any:
    """Return the stages' outputs in a trie of their path components."""
    from dvc.repo.trie import build_outs_trie

    return build_outs_trie(stages)


def outputs_near(trie: Any, dep: Dependency) -> list[Output]:
    """Return the outputs of a trie at, inside or above a dependency."""
    key = dep.fs.parts(dep.fs_path)
    if above := trie.shortest_prefix(key):
        return [above.value]
    return list(trie.values(prefix=key)) if trie.has_node(key) else []


def is_near_output(repo: Repo, path: str) -> bool:
    """Tell whether a stage's output is at, inside or above a path of the workspace."""
    trie, key = repo.index.outs_trie, repo.fs.parts(path)
    return bool(trie.has_node(key) or trie.shortest_prefix(key))


def load_listing(out: Output) -> "Tree":
    """Return the list of an output folder's files, which must be in DVC's cache."""
    from dvc_data.hashfile.tree import Tree

    return Tree.load(out.cache, out.hash_info)


def folder_hash(listing: Mapping[str, str]) -> str:
    """Return DVC's hash of a folder with these files, the md5 of each by its relative path: with the suffix `.dir`."""
    entries = [{"md5": md5, "relpath": name} for name, md5 in sorted(listing.items())]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"


def forget_hashes(repo: Repo, paths: Iterable[str]) -> None:
    """Make DVC's state database hash these files of the workspace again, even if they look unchanged."""
    from dvc_data.hashfile.hash_info import HashInfo

    nothing = {"ino": 0, "mtime": 0, "size": 0}
    repo.state.save_many([(path, HashInfo("md5", ""), nothing) for path in paths], repo.fs)


def file_hash(repo: Repo, path: str) -> str:
    """Return the md5 of a file of the workspace, from DVC's state database if the file has not changed."""
    from dvc_data.hashfile.hash import hash_file

    return str(hash_file(path, repo.fs, "md5", repo.state)[1].value)
