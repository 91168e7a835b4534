"""DVC's ignore rules: the files that they hide, and the rules as they stood in a commit."""

import os
from collections.abc import Callable, Collection, Iterator

from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.paths import from_root

_NEVER_DATA = (".git", ".hg", ".dvc")  # folders that DVC ignores without a rule
_BYTECODE = "__pycache__"


def hidden_files(folder: str, visible: Collection[str]) -> Iterator[str]:
    """Yield the files in a folder that are not among the visible ones; a link to a folder counts as a file."""
    known = set(visible)
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NEVER_DATA]
        links = (name for name in folders if os.path.islink(os.path.join(root, name)))
        yield from (path for name in (*names, *links) if (path := os.path.join(root, name)) not in known)


def rules_at(repo: Repo, commit: str | None) -> Callable[[str], bool]:
    """Return what tells of a file whether the rules of a commit (default: HEAD) ignore it.

    Without git, or without that commit, only Python's bytecode is ignored: nothing says which rules there were.
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
