"""What tamperings are made of: edits of files, of dvc.lock, of the ledger and of MLflow's store."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import Repo

from dvcfleet.record.environments import sha256
from dvcfleet.record.ledger import LEDGER, Execution, entry_digest, sound_lines
from merganser.hashes import sha256_of_tree
from merganser.tasks.recorded import REPORTED
from merganser.tasks.stages import REPORT

STATE = Path(".dvcfleet")
LEDGER_FILE = STATE / LEDGER
ENTRY, OTHER, TASK = "ties", "average", "dark"
METRIC = Path(f"data/metrics/{ENTRY}/{TASK}.json")
MERGE = Path(f"data/merged/{ENTRY}")
MODEL = MERGE / "model.safetensors"


@dataclass(frozen=True)
class Tampering:
    """A tampering in words; whether it is a consistent edit of several files; why it is not found, if it is not."""

    text: str
    tamper: Callable[[], None]
    is_consistent: bool
    why: str


TAMPERINGS: dict[str, Tampering] = {}


def tampering(text: str, *, is_consistent: bool = False, why: str = "") -> Callable[..., Callable[[], None]]:
    """Add a function to the tamperings."""

    def add(tamper: Callable[[], None]) -> Callable[[], None]:
        assert tamper.__name__ not in TAMPERINGS, tamper.__name__
        TAMPERINGS[tamper.__name__] = Tampering(text, tamper, is_consistent, why)
        return tamper

    return add


def write(path: Path, content: bytes | str) -> None:
    """Write a file anew: it may be a link into DVC's cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def flip(path: Path, is_linked: bool = False) -> None:
    """Change the last byte of a file, and set its time back; `is_linked`: in place, so that DVC's copy changes too."""
    content, info = path.read_bytes(), path.stat()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    if is_linked:
        path.chmod(0o644)
        path.write_bytes(changed)
    else:
        write(path, changed)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def edit(path: Path, old: str, new: str, count: int = 1) -> None:
    """Replace a text in a file that has it."""
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path}"
    write(path, text.replace(old, new, count))


def edit_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON object."""
    write(path, json.dumps(json.loads(path.read_text()) | values, indent=2) + "\n")


def better(path: Path = METRIC) -> float:
    """Make a score better; return it."""
    value = json.loads(path.read_text())["value"] / 2 + 0.5
    edit_json(path, value=value)
    return float(value)


def commit(*stages: str) -> None:
    """Put the present outputs and inputs of stages into DVC's cache and dvc.lock."""
    with Repo() as repo:
        for stage in stages:
            repo.commit(stage, force=True)


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    """Run a command."""
    subprocess.run(command, check=True, capture_output=True, env=os.environ | (environment or {}))


def git_commit(*paths: str) -> None:
    """Commit files to git."""
    run("git", "add", "-f", *paths)
    run("git", "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-qm", "more")


def lock_entry(stage: str) -> dict[str, Any]:
    """Return a stage's entry of dvc.lock."""
    entry: dict[str, Any] = yaml.safe_load(Path("dvc.lock").read_text())["stages"][stage]
    return entry


def edit_lock(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the entries of dvc.lock."""
    lock = yaml.safe_load(Path("dvc.lock").read_text())
    change(lock["stages"])
    write(Path("dvc.lock"), yaml.safe_dump(lock, sort_keys=False))


def edit_params(*keys: str, value: Any) -> None:
    """Set a value of params.yaml."""
    params = yaml.safe_load(Path("params.yaml").read_text())
    place = params
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    write(Path("params.yaml"), yaml.safe_dump(params, sort_keys=False))


def edit_lines(change: Callable[[list[bytes]], list[bytes]], path: Path = LEDGER_FILE) -> None:
    """Change the lines of a ledger."""
    write(path, b"\n".join([*change(path.read_bytes().splitlines()), b""]))


def rewrite_ledger(change: Callable[[Execution], Execution], from_first: bool = False) -> None:
    """Change executions in the ledger, and compute its chain again from the first change on, or all of it."""
    lines: list[bytes] = []
    has_changed = from_first
    for old, execution in list(sound_lines(LEDGER_FILE)):
        new = change(execution)
        has_changed = has_changed or new != execution
        before = sha256(lines[-1]) if lines and has_changed else execution.before
        lines.append(json.dumps(asdict(replace(new, before=before))).encode() if has_changed else old)
    write(LEDGER_FILE, b"\n".join([*lines, b""]))


def told(*stages: str) -> None:
    """Have the ledger name the present entries of stages, with a chain that holds."""
    digests = {stage: entry_digest(lock_entry(stage)) for stage in stages}
    last = {execution.stage: execution for _, execution in sound_lines(LEDGER_FILE)}

    def change(one: Execution) -> Execution:
        return replace(one, entry=digests[one.stage]) if one.stage in digests and one == last[one.stage] else one

    rewrite_ledger(change)


def forget_experiments() -> None:
    """Remove the experiments, which name the ledger's ends."""
    shutil.rmtree(".git/refs/exps", ignore_errors=True)
    packed = Path(".git/packed-refs")
    if packed.exists():
        write(packed, "".join(line for line in packed.read_text().splitlines(True) if "refs/exps" not in line))


def receipt(entry: str = ENTRY) -> dict[str, Any]:
    """Return an entry's receipt."""
    found: dict[str, Any] = json.loads(Path(f"data/records/{entry}.json").read_text())
    return found


def run_of(entry: str = ENTRY) -> str:
    """Return an entry's run in MLflow."""
    return str(receipt(entry)["run_id"])


def parent() -> str:
    """Return the comparison's run in MLflow: the one with the present report. A receipt may name an older one."""
    query = "SELECT run_uuid FROM tags WHERE key = ? AND value = ?"
    with closing(sqlite3.connect("mlflow.db")) as store:
        (found,) = store.execute(query, (REPORTED, sha256_of_tree(REPORT))).fetchone()
    return str(found)


def in_store(statement: str, *values: Any, store: str = "mlflow.db") -> None:
    """Change MLflow's store; each statement changes something."""
    with closing(sqlite3.connect(store)) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0, statement


def log_metric(run_id: str, key: str, value: float, tables: tuple[str, ...] = ("metrics", "latest_metrics")) -> None:
    """Set a metric that a run has."""
    for table in tables:
        in_store(f"UPDATE {table} SET value = ? WHERE run_uuid = ? AND key = ?", value, run_id, key)


def add_metric(run_id: str, key: str, value: float) -> None:
    """Add a metric that a run has not."""
    for table in ("metrics", "latest_metrics"):
        fields = "key, value, timestamp, step, is_nan, run_uuid"
        in_store(f"INSERT INTO {table} ({fields}) VALUES (?, ?, 1, 0, 0, ?)", key, value, run_id)


def copy_run(run_id: str, new_id: str) -> None:
    """Copy a run of MLflow's with its numbers and texts."""
    with closing(sqlite3.connect("mlflow.db")) as store, store:
        for table in ("runs", "metrics", "latest_metrics", "params", "tags"):
            names = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
            values = ", ".join("?" if name == "run_uuid" else name for name in names)
            query = f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table} WHERE run_uuid = ?"
            store.execute(query, (new_id, run_id))
        places = "UPDATE runs SET artifact_uri = replace(artifact_uri, ?, ?) WHERE run_uuid = ?"
        store.execute(places, (run_id, new_id, new_id))


def artifacts(run_id: str) -> Path:
    """Return the folder of a run's artifacts."""
    return Path("mlartifacts", run_id, "artifacts")
