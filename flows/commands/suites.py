"""`merganser suites` and `merganser use`: the ready comparisons, and which one is in place."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dvcfleet.command_line import JsonOption, RepoOption
from dvcfleet.repository import root_around
from dvcfleet.terminal.failures import EXIT_CODES
from dvcfleet.terminal.secrets import printable
from merganser.command_line.app import example
from merganser.flows.commands.lineage import say
from merganser.outputs import write_whole

app = typer.Typer(help="List and check the ready-made comparisons, and compare with papers.")


@app.callback(invoke_without_command=True, epilog=example("merganser suites --json"))
def suites(context: typer.Context, as_json: JsonOption = False, repo: RepoOption = Path()) -> None:
    """List the ready-made comparisons: family, tasks, entries, download, GPU; * marks the one in use."""
    if context.invoked_subcommand:
        return
    from merganser.command_line.output import print_table
    from merganser.flows.suites.files import suites_root
    from merganser.flows.suites.ready import ROW, list_suites, suite_row

    listed = list_suites(suites_root(repo))
    if as_json:
        print(json.dumps([asdict(suite) for suite in listed], indent=2))
    else:
        print_table(ROW, map(suite_row, listed))


@app.command("check", epilog=example("merganser suites check encoder", EXIT_CODES))
def suites_check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A suite; `merganser suites` lists them.")],
    offline: Annotated[bool, typer.Option("--offline", help="Contact no hub.")] = False,
    pin: Annotated[
        bool, typer.Option("--pin", help="Pin each followed branch to its current commit, in the pointer file.")
    ] = False,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Check a suite without downloading it: choices, pointers, figures and, online, that its sources exist."""
    from merganser.flows.suites.check import check_lines, validate_suite
    from merganser.flows.suites.files import suites_root

    root = root_around(repo) if pin else suites_root(repo)
    checked = validate_suite(root, name, online=not offline or pin, pin_them=pin)
    print(json.dumps(asdict(checked), indent=2) if as_json else printable("\n".join(check_lines(checked))))
    raise typer.Exit(2 if checked.mistakes else 0)


@app.command("diff", epilog=example("merganser suites diff --all --page papers.html", EXIT_CODES))
def suites_diff(
    of_all: Annotated[
        bool,
        typer.Option(
            "--all", help="For all suites that were run: which figures of each paper reproduce, which not, why."
        ),
    ] = False,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="With --all: also write an HTML page.")] = None,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Compare papers' figures with the last run's. Marks differences beyond the sampling error."""
    if page and not of_all:
        raise typer.BadParameter("is a page of all suites; give --all too, or open the report", param_hint="--page")
    from merganser.flows.evidence.runs.printing import as_page
    from merganser.flows.pages.reproduced import all_lines, figure_lines, read_all, read_figures

    root = root_around(repo)
    if not of_all:
        figures = read_figures(root)
        say(figures, figure_lines(figures), as_json)
        return
    suites_read = read_all(root)
    say(asdict(suites_read), all_lines(suites_read), as_json)
    if page:
        write_whole(page, as_page("reproduced_all", all=suites_read))


def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A suite; `merganser suites` lists them.")],
    force: Annotated[bool, typer.Option("--force", help="Replace params.yaml even if changes in it are lost.")] = False,
    grids: Annotated[
        bool, typer.Option("--grids", help="Use the variant with parameters searched on validation data.")
    ] = False,
    repo: RepoOption = Path(),
) -> None:
    """Switch to a suite: put its params.yaml in place. Results of other suites stay in DVC's cache."""
    from merganser.flows.suites.ready import GRIDS, PARAMS, SUITES, use

    params = use(root_around(repo), name, force, grids=grids)
    counts = f"{len(params.tasks)} tasks, {len(params.methods)} entries"
    print(f"{PARAMS} is that of {SUITES}/{name}.yaml{f', {GRIDS}' if grids else ''}: {params.base.family}, {counts}")
    print("`merganser run` computes it, and removes outputs that only another comparison needs from the workspace")
