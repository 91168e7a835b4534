"""The name of a run in Prefect, in MLflow and among DVC's experiments; a continued run keeps it."""

import json
import os
import re
from pathlib import Path

from dvcfleet.disk import read_json, write_durably
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError
from dvcfleet.repository import state_folder

RUN_NAME_VARIABLE = "DVCFLEET_RUN"
FILE = "run.json"
_EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def is_begun(repo: Repo) -> bool:
    """Tell whether the last run did not succeed, so that the next one continues under its name."""
    return _file(repo).exists()


def begun_run(folder: Path) -> str | None:
    """Return the name of the run that did not succeed, from the repository's state folder; None if there is none."""
    name = (read_json(folder / FILE) or {}).get("name")
    return name if isinstance(name, str) and _EXPERIMENT_NAME.fullmatch(name) else None


def run_name(repo: Repo) -> str:
    """Return the run's name: that of the run it continues, else DVCFLEET_RUN, else a new one."""
    if begun := begun_run(state_folder(repo)):
        return begun
    name = os.environ.get(RUN_NAME_VARIABLE)
    if not name:
        from coolname import generate_slug

        name = generate_slug(2)
    if not _EXPERIMENT_NAME.fullmatch(name):
        raise UserError(f"{RUN_NAME_VARIABLE}: {name!r} cannot name a DVC experiment; use letters, digits, - and _")
    write_durably(_file(repo), json.dumps({"name": name}))
    return name


def forget_run_name(repo: Repo) -> None:
    """Have the next run take a new name."""
    _file(repo).unlink(missing_ok=True)


def _file(repo: Repo) -> Path:
    return state_folder(repo) / FILE
