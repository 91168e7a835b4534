"""The MLflow store of an archive: a stranger's database, whose queries must end and whose paths must stay inside."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath

from merganser.errors import InputError
from merganser.tasks.tracking import ARTIFACTS, PLACES, STORE, follow_artifacts

# MLflow has tables, indices and one trigger. A view or another trigger could compute for ever.
_SOUND = re.compile(r"CREATE\s+(TABLE|(UNIQUE\s+)?INDEX|TRIGGER\s+\w+\s+BEFORE\s+UPDATE\s+ON\s+secrets)\s", re.I)
# A column whose value is computed: MLflow has one in `spans`, which nothing reads.
_COMPUTED = re.compile(r"CREATE\s+TABLE\b.*\bAS\b", re.I | re.S)
NOWHERE = "file:///archived"  # where an archived MLflow says that its artifacts are
_ELSEWHERE = f"{NOWHERE}/elsewhere/"


def leave_machine(store: sqlite3.Connection) -> None:
    """Remove this machine's folders from an archive's store.

    The comparison's artifacts get the place NOWHERE. Other folders, such as that of MLflow's default experiment,
    keep their last two names.
    """
    here = ARTIFACTS.absolute().as_uri()

    def moved(place: str) -> str:
        if place == here or place.startswith(f"{here}/"):
            return f"{NOWHERE}/{ARTIFACTS}{place.removeprefix(here)}"
        if place.startswith(_ELSEWHERE) or not place.startswith(("/", "file:")):
            return place
        return _ELSEWHERE + "/".join(PurePosixPath(place.removeprefix("file:")).parts[-2:])

    store.create_function("moved", 1, moved)
    for table, column in _places(store):
        store.execute(f"UPDATE {table} SET {column} = moved({column}) WHERE {column} IS NOT NULL")


def take_in_store(root: Path) -> None:
    """Point a restored repository's store at the restored artifacts alone.

    An audit would read other files, and `merganser gc` would delete them. Raises InputError if the store has
    anything but tables of values, or is no database.
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
    """Yield what a query would compute, by its SQL: a damaged file may call a view a table."""
    for name, sql in store.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall():
        if not _SOUND.match(str(sql)) or (_COMPUTED.match(str(sql)) and name != "spans"):
            yield str(name)


def _leave_others(store: sqlite3.Connection, here: str) -> None:
    """Replace folders outside with one that exists nowhere, the same for the same folder."""
    for table, column in _places(store):
        rest = f"substr({column}, {len(here) + 1})"
        inside = f"substr({column}, 1, {len(here)}) = ? AND substr({rest}, 1, 1) IN ('', '/')"
        inside += f" AND instr({rest}, '..') = 0 AND instr({rest}, '%') = 0"
        left = f"substr({column}, 1, {len(_ELSEWHERE)}) = ? AND instr({column}, '..') = 0 AND instr({column}, '%') = 0"
        moved = f"UPDATE {table} SET {column} = ? || replace(replace({column}, '..', '_'), '%', '_')"
        store.execute(f"{moved} WHERE NOT ({inside}) AND NOT ({left})", (_ELSEWHERE, here, _ELSEWHERE))


def _places(store: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the tables and columns with artifact folders; earlier versions of MLflow have fewer."""
    tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master").fetchall()}
    return [(table, column) for table, column in PLACES if table in tables]
