"""DVC's lists of the files in output folders, nesting of outputs, and DVC's ignore rules, today's or a commit's."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.protocols import Dependency, Output, Repo, Stage

if TYPE_CHECKING:
    from dvc_data.hashfile.tree import Tree


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
