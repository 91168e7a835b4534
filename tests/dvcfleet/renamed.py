"""A copy of the installed DVC in which internals have other names, as in a release that renamed them."""

import re
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("dvc", "dvc_data", "dvc_objects", "scmrepo")
# For each fast path one of its internals, as a pattern that finds all uses within DVC.
FAST = {
    "hash_file": r"\bhash_file\b",
    "store_file": r"(?<!os\.)\bumask\b",
    "run_cache": r"(?<=self\.)cache_dir\b",
    "links_table": r"(?<=state\.)links\b|(?<=self\.)links\b",
    "shell_command": r"\b_make_cmd\b",
    "command_environment": r"\bfix_env\b",
    "forget_ignored": r"\b_reset\b",
    "forget_index": r"\b_reset\b",
    "local_paths": r"\bget_cloud_fs\b",
    "acyclic": r"\bcheck_acyclic\b",
    "params_once": r"\bload_path\b",
    "git_index": r"(?<=scm\.)dulwich\b|(?<=def )dulwich\b",
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
