"""Keep the dvc.lock of a comparison while another one is in use: with it DVC's cache restores all results.

DVC's run cache alone would not be enough: it has no outputs that persist, such as decompositions, and no report.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

from dvcfleet.crash_recovery import recovered_lock_files
from dvcfleet.dvc_adapter.lockfiles import lock_file_of
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stages import in_dvc_yaml
from dvcfleet.errors import in_one_line
from dvcfleet.repository import state_folder
from merganser.errors import InputError
from merganser.limits import read_yaml
from merganser.outputs import replacing

FOLDER = "locks"  # in the state folder: a copy of dvc.lock for each params.yaml that `merganser use` replaced


def keep_lock_file(repo: Repo, params: Path) -> None:
    """Save dvc.lock for the comparison of this params.yaml."""
    lock_file = Path(repo.root_dir) / "dvc.lock"
    if not lock_file.is_file() or not params.is_file():
        return
    recovered_lock_files(repo, state_folder(repo))  # what a killed run had not written there yet
    kept = _kept(repo, params)
    kept.parent.mkdir(exist_ok=True)
    with open(lock_file, "rb") as source, replacing(kept) as out:
        shutil.copyfileobj(source, out)


def restore_lock_file(repo: Repo, params: Path) -> None:
    """Restore the saved dvc.lock entries of this params.yaml; others stay, for a run to find the outputs to remove."""
    from dvc.exceptions import DvcException
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import load_yaml
    from voluptuous import Invalid

    kept = _kept(repo, params)
    try:
        entries = COMPILED_LOCKFILE_SCHEMA(load_yaml(str(kept))).get("stages") if kept.is_file() else None
    except (DvcException, Invalid, ValueError, RecursionError) as error:
        entries = None
        print(f"{kept}: damaged, and left alone ({in_one_line(error)}); a run restores what it can", file=sys.stderr)
    if not entries:
        return
    forget_index(repo)
    lock_files = recovered_lock_files(repo, state_folder(repo))
    root = str(Path(repo.root_dir) / "dvc.lock")
    for stage in repo.index.stages:
        if in_dvc_yaml(stage) and stage.name in entries and lock_file_of(stage) == root:
            lock_files.record(stage, entries[stage.name])
    lock_files.flush()
    lock_files.settle()
    forget_index(repo)


def _kept(repo: Repo, params: Path) -> Path:
    """Return the path of a params.yaml's saved lock file; comments and the order of keys do not matter."""
    try:
        content = json.loads(json.dumps(read_yaml(params), default=str))
        known = json.dumps(content, sort_keys=True).encode()
    except (InputError, TypeError):
        known = params.read_bytes()
    return state_folder(repo) / FOLDER / f"{hashlib.sha256(known).hexdigest()}.lock"
