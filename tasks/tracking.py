"""Where MLflow's store is, and what its errors mean; MLflow itself is imported by `tasks.record`."""

import os
from pathlib import Path

from dvcfleet.secrets import masked

STORE, ARTIFACTS = Path("mlflow.db"), Path("mlartifacts")
# What SQLite, and MLflow of its tables, say of a file that is no longer theirs.
_DAMAGE = (
    "malformed",
    "not a database",
    "no such table",
    "no such column",
    "unsupported file format",
    "t locate revision",
)


def store_words(error: BaseException) -> str:
    """Say what is wrong with MLflow's store, and what to do."""
    where = os.environ.get("MLFLOW_TRACKING_URI", STORE)
    reason = str(error).partition("\n")[0]
    if any(words in reason for words in _DAMAGE):
        to_do = "move it away, and `merganser run` records every result again"
        return masked(f"MLflow's store {where} is damaged ({reason}): {to_do}; the scores are kept in files")
    return masked(
        f"MLflow's store {where} is locked or away ({reason}): run again when it is back; the scores are kept"
    )
