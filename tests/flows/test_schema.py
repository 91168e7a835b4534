"""A new Prefect database."""

from pathlib import Path

import pytest

from flows import schema


def test_a_new_database_is_as_the_installed_prefect_leaves_it(tmp_path: Path) -> None:
    schema.make_database(tmp_path / "prefect.db")
    assert schema.is_current(tmp_path / "prefect.db")
    assert [path.name for path in tmp_path.iterdir()] == ["prefect.db"]


@pytest.mark.slow
def test_the_schema_kept_here_is_what_the_installed_prefects_migrations_make(tmp_path: Path) -> None:
    schema._migrate_apart(tmp_path / "prefect.db")
    made, kept = clauses(schema.dump(tmp_path / "prefect.db")), clauses(schema.SCHEMA.read_text(encoding="utf-8"))
    assert made == kept, "another version of Prefect: `python -m flows.schema` writes its schema"


def clauses(sql: str) -> list[str]:
    """The lines in an order of their own: that of a table's constraints changes from one migration to the next."""
    return sorted(line.strip().rstrip(",").rstrip() for line in sql.splitlines())


@pytest.mark.slow
def test_without_a_schema_prefect_makes_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "head", lambda: "another")
    schema.make_database(tmp_path / "prefect.db")
    monkeypatch.undo()
    assert schema.is_current(tmp_path / "prefect.db")


def test_an_older_database_is_not_taken_for_a_current_one(tmp_path: Path) -> None:
    (tmp_path / "none.db").write_text("no database")
    assert not schema.is_current(tmp_path / "none.db")
