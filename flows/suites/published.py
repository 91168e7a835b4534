"""Papers' figures, one file of `published/` per paper: its tables, with rows by suite, and values that they share.

From these `merganser use` writes the file of published figures that a suite's params.yaml names.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator
from ruamel.yaml import YAML

from merganser.config.mistakes import mistakes_in
from merganser.config.params import Params
from merganser.config.sections import Strict, Text
from merganser.errors import InputError, did_you_mean
from merganser.flows.suites.files import read_once, suite_folders

PAPERS = Path("published")
FIGURES = "published.yaml"
WIDTH = 150  # characters a line


class Shared(BaseModel, extra="allow"):
    """Values that a paper's tables share unless they set their own; `parameters` and `notes` are by entry."""

    parameters: dict[Text, Any] = Field(default={})
    notes: dict[Text, Any] = Field(default={})


class PaperTable(Shared):
    """A table as in a file of published figures, with its rows by suite and then by entry."""

    rows: Annotated[dict[Text, dict[Text, Any]], Field(min_length=1)]


class Paper(Strict):
    """A paper's figures for the entries of suites."""

    paper: Text
    each: Shared = Shared()
    tables: Annotated[list[PaperTable], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_of_rows(self) -> Self:
        places: list[tuple[str, Shared, list[PaperTable]]] = [("each", self.each, self.tables)]
        places += [(f"tables.{number}", table, [table]) for number, table in enumerate(self.tables)]
        for place, said, tables in places:
            entries = {entry for table in tables for rows in table.rows.values() for entry in rows}
            for key, names in (("parameters", said.parameters), ("notes", said.notes)):
                for name in names:
                    if name not in entries:
                        raise ValueError(f"{place}.{key}.{name}: not in rows{did_you_mean(name, entries)}")
        return self


def suites_with_figures(root: Path) -> set[str]:
    """Return the names of suites with published figures."""
    return {suite for paper in _papers(root) for table in paper.tables for suite in table.rows}


def figures_of(root: Path, suite: str, params: Params) -> dict[str, Any]:
    """Return the content of a suite's file of published figures; raise InputError if a paper's file is broken."""
    unseen = {"unseen": list(params.unseen)} if params.unseen else {}
    tables = [table for paper in _papers(root) for table in _tables(paper, suite)]
    return {"tasks": list(params.measured), **unseen, "tables": tables}


def figures_text(content: dict[str, Any]) -> str:
    """Return the text of a file of published figures."""
    yaml, out = YAML(), io.StringIO()
    yaml.width, yaml.default_flow_style = WIDTH, None
    yaml.dump(content, out)
    return out.getvalue()


def _papers(root: Path) -> Iterator[Paper]:
    names = sorted({path.stem for place in suite_folders(root) for path in (place / PAPERS).glob("*.yaml")})
    return (_read(root, PAPERS / f"{name}.yaml") for name in names)


def _read(root: Path, path: Path) -> Paper:
    content = read_once(root, path)
    if mistakes := mistakes_in(content, Paper):
        raise InputError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return Paper.model_validate(content)


def _tables(paper: Paper, suite: str) -> Iterator[dict[str, Any]]:
    for table in paper.tables:
        if rows := table.rows.get(suite):
            parameters, notes = paper.each.parameters | table.parameters, paper.each.notes | table.notes
            yield {
                "paper": paper.paper,
                **(paper.each.model_extra or {}),
                **(table.model_extra or {}),
                "rows": rows,
                "parameters": {entry: parameters[entry] for entry in rows if entry in parameters},
                "notes": {entry: notes[entry] for entry in rows if entry in notes},
            }
