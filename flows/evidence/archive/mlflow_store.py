"""An archive's store of MLflow's: a database that somebody wrote, whose queries must end and lead nowhere else."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from merganser.errors import InputError
from merganser.tasks.tracking import ARTIFACTS, PLACES, STORE, follow_artifacts

# MLflow has tables, indices and one trigger. A view or another trigger could compute for ever.
_SOUND = re.compile(r"CREATE\s+(TABLE|(UNIQUE\s+)?INDEX|TRIGGER\s+\w+\s+BEFORE\s+UPDATE\s+ON\s+secrets)\s", re.I)
# A column whose value is computed: MLflow has one in `spans`, which nothing reads.
_COMPUTED = re.compile(r"CREATE\s+TABLE\b.*\bAS\b", re.I | re.S)
_ELSEWHERE = "file:///archived/elsewhere/"


def take_in_store(root: Path) -> None:
    """Have the store of a restored repository name no artifacts but those that are there.

    An audit would read others, and `merganser gc` would delete them. Raises InputError for a store that is more than
    tables of values, or none.
    """
    if not (root / STORE).is_file():
        return
    try:
        with closing(sqlite3.connect(root / STORE)) as store:
            computed = next(_computed(store), None)
        if not computed:
            follow_artifacts(root)
            with closing(sqlite3.connect(root / STORE)) as store, store:
                _leave_others(store, (root / ARTIFACTS).absolute().as_uri())
    except (sqlite3.Error, ValueError) as error:
        raise InputError(f"{STORE}: cannot be read as a store of MLflow's ({error})") from error
    if computed:
        raise InputError(f"{STORE}: {computed} is computed, and MLflow's tables hold values only")


def _computed(store: sqlite3.Connection) -> Iterator[str]:
    """Yield what a query would compute, by the SQL: a damaged file may call a view a table."""
    for name, sql in store.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall():
        if not _SOUND.match(str(sql)) or (_COMPUTED.match(str(sql)) and name != "spans"):
            yield str(name)


def _leave_others(store: sqlite3.Connection, here: str) -> None:
    """Move the places out of a folder to one that no machine has, the same for the same place."""
    tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master").fetchall()}
    for table, column in (each for each in PLACES if each[0] in tables):  # earlier versions of MLflow have fewer
        rest = f"substr({column}, {len(here) + 1})"
        inside = f"substr({column}, 1, {len(here)}) = ? AND substr({rest}, 1, 1) IN ('', '/')"
        inside += f" AND instr({rest}, '..') = 0 AND instr({rest}, '%') = 0"
        moved = f"UPDATE {table} SET {column} = ? || replace(replace({column}, '..', '_'), '%', '_')"
        store.execute(f"{moved} WHERE NOT ({inside})", (_ELSEWHERE, here))
