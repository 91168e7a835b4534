"""A copy of the installed DVC in which internals have other names, as in a release that renamed them."""

import re
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("dvc", "dvc_data", "dvc_objects", "scmrepo")
# For each fast path, by what is slower without it, one of its internals: a pattern that finds all uses within DVC.
FAST = {
    "hashing files": r"\bhash_file\b",
    "storing outputs": r"(?<!os\.)\bumask\b",
    "using the run cache": r"(?<=self\.)cache_dir\b",
    "linking outputs": r"\btest_links\b",
    "storing folders": r"\b_build\b",
    "noting links": r"(?<=state\.)links\b|(?<=self\.)links\b",
    "starting a shell, which now reads its settings,": r"\b_make_cmd\b",
    "finding a python under pyenv": r"\bfix_env\b",
    "writing .gitignore files": r"\b_reset\b",
    "looking up outputs in git": r"\bis_tracked\b",
    "reading dvc.yaml": r"\bget_cloud_fs\b",
    "checking the graph of stages": r"\bcheck_acyclic\b",
    "reading parameters": r"\bload_path\b",
}


def renamed_dvc(folder: Path, patterns: Iterable[str]) -> Path:
    """Copy DVC into a folder with each name that a pattern finds changed; return what to put on PYTHONPATH."""
    pattern = re.compile("|".join(patterns))
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec
        assert spec.origin
        shutil.copytree(Path(spec.origin).parent, folder / package)
    for source in folder.rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        changed = pattern.sub(lambda found: f"{found[0]}_renamed", text)
        if changed != text:
            source.write_text(changed, encoding="utf-8")
    return folder
