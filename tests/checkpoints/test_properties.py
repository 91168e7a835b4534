"""What the docs say of each property of checkpoints is what the project does."""

from tests.checkpoints.properties import BEGIN, END, PAGE, PROPERTIES, table


def test_the_table_of_properties_in_the_docs_is_what_the_project_does() -> None:
    """Where it is not: `python -m tests.checkpoints.properties` writes it."""
    said = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert said.strip() == table()
    assert len(PROPERTIES) >= 60
