"""`merganser report`: the best entries in the terminal, or the table of all entries for a paper or a pull request."""

from pathlib import Path
from typing import Annotated

import typer

from dvcfleet.command_line import RepoOption
from dvcfleet.repository import root_around
from merganser.errors import InputError
from merganser.outputs import write_whole


def report(
    tex: Annotated[
        bool, typer.Option("--tex", help="Print the table of all entries as LaTeX for a paper; it needs booktabs.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the best entries and all entries as Markdown, for a pull request.")
    ] = False,
    errors: Annotated[bool, typer.Option("--errors", help="With --tex: add each number's sampling error.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --tex or --markdown: write to FILE instead of printing.")
    ] = None,
    repo: RepoOption = Path(),
) -> None:
    """Print the best entries, as the report names them. With --tex or --markdown, print its table."""
    from merganser.flows.steps.answer import markdown_lines, paper_table, report_lines

    if tex and markdown:
        raise InputError("--tex and --markdown: two forms of the same table; give one of them")
    if errors and not tex:
        raise InputError("--errors needs --tex: say `merganser report --tex --errors`")
    if out and not (tex or markdown):
        raise InputError("--out needs --tex or --markdown: say which form to write")
    root = root_around(repo)
    lines = markdown_lines if markdown else report_lines
    text = paper_table(root, errors=errors) if tex else "".join(f"{line}\n" for line in lines(root))
    if out:
        write_whole(out, text)
    else:
        print(text, end="")
