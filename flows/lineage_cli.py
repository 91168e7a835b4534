"""`merganser lineage`: where a result comes from, and whether anything has changed since."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dvcfleet.secrets import masked, printable

app = typer.Typer(
    help="Show where a result comes from, and verify that nothing has changed since.", no_args_is_help=True
)

_ABOUT_TARGET = (
    "A stage, one of its outputs or a file in one, an MLflow run's id, or a cell of the report: ENTRY/COLUMN."
)
RepoOption = Annotated[Path, typer.Option("--repo", metavar="DIR", help="The DVC repository, or a folder in it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


@app.command()
def show(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_ABOUT_TARGET)],
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Show the lineage of a result, stage by stage, down to each checkpoint's source, revision and checksum."""
    from dvcfleet.provenance import show
    from dvcfleet.provenance.audit import look_up

    found, lineage = look_up(repo, target)
    if as_json:
        print(masked(json.dumps(show.as_json(found, lineage), indent=2, default=str)))
        return
    for line in show.as_lines(found, lineage):
        print(printable(masked(line)))


@app.command()
def verify(
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help=f"{_ABOUT_TARGET} All if not given.")] = None,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Also run all stages again in a scratch copy, and compare the bytes.")
    ] = False,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Read every byte again and report what differs from the record; print nothing and exit with 0 if nothing does."""
    from dvcfleet.provenance.audit import audit

    done = audit(repo, target, rerun)
    if as_json:
        print(masked(json.dumps(done.as_json(), indent=2)))
    else:
        for finding in done.findings:
            print(printable(masked(str(finding))))
    if rerun and not done.run_again:
        print("not run again: first undo what is changed, or run `merganser run`", file=sys.stderr)
    raise typer.Exit(1 if done.findings else 0)


@app.command()
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file: .json for W3C PROV-JSON, .jsonl for OpenLineage events.")
    ],
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help=f"{_ABOUT_TARGET} All if not given.")] = None,
    repo: RepoOption = Path(),
) -> None:
    """Export the lineage of results to other tools."""
    from dvcfleet.provenance.export import export

    print(f"{export(repo, file, target)} in {file}")
