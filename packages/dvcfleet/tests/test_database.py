"""A new Prefect database."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dvcfleet.prefect_adapter import database as schema


def tables(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall())


def make_two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make databases; the second without a migration, as the copy of the first."""
    schema.make_database(folder / "first.db")
    monkeypatch.setattr(schema, "_migrate_apart", lambda _: pytest.fail("migrated again"))
    schema.make_database(folder / "second.db")
    assert schema.is_current(folder / "first.db")
    assert schema.is_current(folder / "second.db")
    assert tables(folder / "first.db") == tables(folder / "second.db")
    assert [path.name for path in folder.glob("*draft*")] == []


def test_a_database_is_a_copy_of_the_one_that_the_environment_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_two(tmp_path, monkeypatch)
    assert (schema.KEPT / f"prefect-{schema.head()}.db").is_file()


@pytest.mark.drill  # more than a hundred migrations, which an environment's first run makes
def test_the_first_database_is_made_by_prefect_and_the_next_is_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "KEPT", tmp_path / "kept")
    make_two(tmp_path, monkeypatch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.db", "kept", "second.db"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"prefect-{schema.head()}.db"]


@pytest.mark.drill
def test_an_environment_that_cannot_be_written_to_makes_each_database_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(schema, "KEPT", tmp_path / "file" / "kept")
    schema.make_database(tmp_path / "prefect.db")
    assert schema.is_current(tmp_path / "prefect.db")


def test_an_older_database_is_not_taken_for_a_current_one(tmp_path: Path) -> None:
    (tmp_path / "none.db").write_text("no database")
    assert not schema.is_current(tmp_path / "none.db")
