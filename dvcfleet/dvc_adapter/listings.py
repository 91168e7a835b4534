"""DVC's listings of output folders, and how outputs are nested."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dvc_data.hashfile.tree import Tree

    from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage


def outputs_trie(stages: Sequence["Stage"]) -> Any:
    """Return the stages' outputs in a trie of their path components."""
    from dvc.repo.trie import build_outs_trie

    return build_outs_trie(stages)


def load_listing(out: "Output") -> "Tree":
    """Return the listing of an output folder, which must be in DVC's cache."""
    from dvc_data.hashfile.tree import Tree

    return Tree.load(out.cache, out.hash_info)


def folder_hash(files: Iterable[tuple[tuple[str, ...], str]]) -> str:
    """Return DVC's hash of a folder with these files: the path components and md5 of each."""
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree

    tree = Tree()
    for key, md5 in files:
        tree.add(key, None, HashInfo("md5", md5))
    tree.digest()
    return str(tree.hash_info.value)


def forget_hashes(repo: "Repo", paths: Iterable[str]) -> None:
    """Make DVC's state database hash these files of the workspace again, even if they look unchanged."""
    from dvc_data.hashfile.hash_info import HashInfo

    nothing = {"ino": 0, "mtime": 0, "size": 0}
    repo.state.save_many([(path, HashInfo("md5", ""), nothing) for path in paths], repo.fs)


def file_hash(repo: "Repo", path: str) -> str:
    """Return the md5 of a file of the workspace, from DVC's state database if the file has not changed."""
    from dvc_data.hashfile.hash import hash_file

    return str(hash_file(path, repo.fs, "md5", repo.state)[1].value)
