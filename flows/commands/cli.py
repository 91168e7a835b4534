"""The command line."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from inspect import Parameter, get_annotations, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from dvcfleet import command_line
from dvcfleet.command_line import JsonOption, RepoOption
from dvcfleet.errors import UserError
from dvcfleet.process_settings import raise_gc_thresholds, reach_this_machine
from dvcfleet.repository import root_around
from dvcfleet.terminal.failures import EXIT_CODES, boundary, is_a
from dvcfleet.terminal.secrets import printable
from merganser.command_line.app import Listed, add_commands, empty_app, example
from merganser.command_line.merge import named_values
from merganser.config import PARAMS
from merganser.errors import InputError
from merganser.extras import naming_extras
from merganser.flows.commands import lineage as lineage_cli
from merganser.flows.commands import suites as suites_cli
from merganser.flows.commands.report import report
from merganser.outputs import write_whole
from merganser.plugins import trust_own_methods
from merganser.tasks.tracking import store_words

LEFT_OUT = re.compile(r"failed to parse .*'dvc\.yaml': Could not find")  # DVC's words
app = empty_app()
app.add_typer(lineage_cli.app, name="lineage")
node = typer.Typer(help="Prepare clones as cluster nodes.", no_args_is_help=True)
app.add_typer(node, name="node")
app.add_typer(suites_cli.app, name="suites")


def with_options_of(command: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of another one, to which it passes further options on."""

    def decorate(own: Callable[..., None]) -> Callable[..., None]:
        both = [signature(each).parameters.values() for each in (own, command)]
        own.__signature__ = signature(own).replace(  # type: ignore[attr-defined]
            parameters=[one for each in both for one in each if one.kind is not Parameter.VAR_KEYWORD]
        )
        own.__annotations__ = get_annotations(command) | get_annotations(own)
        return own

    return decorate


def main() -> None:
    """Run the command line; every error ends in a line and an exit code."""
    raise_gc_thresholds()
    reach_this_machine()
    with boundary(mlflow_words, command_line.named_state_folder), naming_extras(), naming_what_completes():
        app(prog_name="merganser")  # also as `python -m merganser.flows`


@contextmanager
def naming_what_completes() -> Iterator[None]:
    """Name the command that completes params.yaml, if DVC finds in the block that keys are missing."""
    try:
        yield
    except UserError as error:
        if not LEFT_OUT.search(str(error)):
            raise
        raise UserError(f"{error}; run `merganser status` first: it adds the missing values to {PARAMS}") from error


def mlflow_words(error: BaseException) -> str | None:
    """Explain an error of MLflow or its database; None for other errors."""
    known = is_a(error, "mlflow.exceptions.MlflowException", "sqlalchemy.exc.SQLAlchemyError")
    return store_words(error) if known else None


TRIAL = partial(typer.Option, rich_help_panel="Trial: params.yaml, dvc.lock and the report stay as they are")


@app.command(epilog=example("merganser run --set methods.ties.density=0.3 --only ties", EXIT_CODES))
@with_options_of(command_line.run)
def run(
    settings: Annotated[
        list[str] | None, TRIAL("--set", metavar="KEY=VALUE", help="Try another value, by its key path. Repeatable.")
    ] = None,
    only: Annotated[
        str | None, TRIAL(metavar="ENTRY,...", help="Run only these entries, their inputs, base and individual.")
    ] = None,
    tasks: Annotated[str | None, TRIAL(metavar="TASK,...", help="Use only these tasks.")] = None,
    examples: Annotated[int | None, TRIAL(min=1, metavar="N", help="Use at most N examples of each task.")] = None,
    **options: Any,
) -> None:
    """Run every stale stage in parallel. After a failure or a kill, run it again to resume."""
    if not options["dry_run"]:
        trust_own_methods()
    if settings or only is not None or tasks is not None or examples is not None:
        from merganser.flows.repositories.trials import Wish, make_trial  # imports torch

        folder, changes = make_trial(root_around(options["repo"]), Wish(tuple(settings or ()), only, tasks, examples))
        place = os.path.relpath(folder)
        print(f"a trial in {place}, from where all paths are; it differs in", *changes, sep="\n  ", flush=True)
        options["repo"] = folder
    command_line.run(**options)


app.command(epilog=example("merganser logs merge@ties --follow"))(command_line.logs)
app.command(epilog=example("merganser status --json"))(command_line.status)


app.command(epilog=example("merganser report --tex --errors --out table.tex", EXIT_CODES))(report)


@app.command("diff", epilog=example("merganser diff brave-otter workspace", EXIT_CODES))
def diff(
    first: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name, a commit, a comparison's folder or a trial.")
    ],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another run, or `workspace`: the current state.")],
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Compare two runs: parameters, code, environment, and scores with paired tests."""
    from merganser.flows.evidence.runs.diff import diff_runs
    from merganser.flows.evidence.runs.printing import as_page, diff_lines

    compared_runs = diff_runs(root_around(repo), first, second)
    lineage_cli.say(compared_runs.as_json(), diff_lines(compared_runs), as_json)
    if page:
        write_whole(page, as_page("run_diff", found=compared_runs))


app.command(epilog=example("merganser use encoder", EXIT_CODES))(suites_cli.use)


@app.command(
    cls=Listed,
    epilog=example(
        "merganser init demo --suite image",
        "merganser init mine --models base=BASE one=MODEL two=MODEL --data one=FOLDER two=FOLDER",
        EXIT_CODES,
    ),
)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Start from this suite.")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL ...",
            help="Your models: each a folder, a file, an adapter's folder or org/name@revision on a hub. base=MODEL is "
            "the model they were fine-tuned from; default: their mean.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DATA ...",
            help="The data of each model: a folder saved by DatasetDict.save_to_disk, or org/name@revision on a hub.",
        ),
    ] = None,
    clone: Annotated[
        Path | None, typer.Option("--from", metavar="CLONE", help="Copy the comparison of a clone of Merganser.")
    ] = None,
    cache_of: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Share the DVC cache of this comparison: each restores the other's results. Without --suite and "
            "--models, copy its params.yaml too.",
        ),
    ] = None,
) -> None:
    """Create a repository for a comparison. It runs the installed Merganser.

    Inside a git repository, the comparison becomes a folder there.
    """
    from merganser.flows.commands.init import UNFINISHED, Choices, Clone, Models, Same, Suite, init

    other = None if cache_of is None else root_around(cache_of)
    if data and not models:
        raise InputError("--data is of --models: a suite has its own")
    given: list[Choices] = [Suite(suite)] if suite is not None else []
    given += [Models(named_values("--models", models), named_values("--data", data or []))] if models else []
    given += [Clone(clone)] if clone is not None else []
    given = given or ([Same(other)] if other else [])
    if len(given) != 1:
        ways = "--suite NAME, --models base=MODEL one=MODEL ..., --from CLONE, or --cache-of DIR"
        raise InputError(f"say what it compares, in one way: {ways}")
    if clone is not None and other:
        raise InputError("--cache-of: a comparison taken --from a clone has its own cache; leave one of them out")
    lines = init(folder, given[0], other)
    print(*map(printable, lines), sep="\n")
    then = "then " if UNFINISHED in lines else ""
    print(f"{then}`cd {shlex.quote(str(folder))} && merganser run` makes it")


@app.command(epilog=example("merganser update", EXIT_CODES))
def update(
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep the results of a changed method or stage, or `all`.")
    ] = None,
    repo: RepoOption = Path(),
) -> None:
    """Update a comparison to the installed Merganser. Lists what the next run will rerun, and the expected cost.

    `merganser run` updates by itself. Results kept by --keep stay until an update without it.
    """
    from dvcfleet.run import run as run_stages
    from merganser.flows.steps.updating import update

    root = root_around(repo)
    print(*map(printable, update(root, keep or ())), sep="\n", flush=True)
    raise typer.Exit(run_stages(repo=root, dry_run=True))


@app.command(deprecated=True, epilog=example("merganser new ../clip --suite clip-vit-b-32-8"))
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.")],
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Start from this suite; default: the params.yaml here.")
    ] = None,
    repo: RepoOption = Path(),
) -> None:
    """Create a comparison with the cache of this one. Use `merganser init DIR --cache-of .` instead."""
    root = root_around(repo)
    more = f" --suite {suite}" if suite else ""
    print(f"`merganser new` goes in 0.3: say `merganser init {folder}{more} --cache-of {os.path.relpath(root)}`")
    init(folder, suite, cache_of=root)


@app.command(epilog=example("merganser rename digits numerals", EXIT_CODES))
def rename(
    old: Annotated[str, typer.Argument(metavar="TASK", help="A task in params.yaml.")],
    new: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    repo: RepoOption = Path(),
) -> None:
    """Rename a task. Results that do not depend on its name are kept."""
    from merganser.flows.commands.renaming import rename

    print(*rename(root_around(repo), old, new), sep="\n")


@app.command(
    epilog=example("merganser archive comparison.tar --data", "merganser archive --restore comparison.tar ../again")
)
def archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write; with --restore, to read.")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="With --restore: a folder that does not exist yet.")
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Include all data of the stages, so that nothing runs again after --restore.")
    ] = False,
    restore: Annotated[bool, typer.Option("--restore", help="Restore the archived repository into FOLDER.")] = False,
    repo: RepoOption = Path(),
) -> None:
    """Save the comparison as one file, or restore it. `merganser lineage verify --archive` checks it anywhere."""
    if restore != (folder is not None) or (restore and data):
        raise InputError("merganser archive FILE [--data] writes an archive, --restore FILE FOLDER restores one")
    if folder:
        from merganser.flows.evidence.archive.restoring import restore as restore_archive

        lines = restore_archive(file, folder)
    else:
        from dvcfleet.lineage.audit import audit
        from merganser.flows.evidence.archive.writing import archive as write

        lineage_cli.refuse_changed(audit(repo).findings, "archived")
        lines = write(root_around(repo), file.absolute(), data)
    print(*map(printable, lines), sep="\n")


@app.command("history", epilog=example("merganser history --page history.html", EXIT_CODES))
def history(
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Show each saved run's changes and lower scores, and each entry's score over time."""
    from merganser.flows.evidence.runs.history import read_history
    from merganser.flows.evidence.runs.printing import history_lines
    from merganser.flows.pages.history_page import history_page

    points = read_history(root_around(repo))
    lineage_cli.say([asdict(each) for each in points], history_lines(points), as_json)
    if page:
        write_whole(page, history_page(points))


@app.command("gc", epilog=example("merganser gc --keep 30d --keep-best --yes", EXIT_CODES))
def gc(
    keep: Annotated[str, typer.Option(metavar="TIME", help="Keep all data newer than this: 12h, 30d or 8w.")],
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Also keep the run with the best mean score of each entry.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete. Without --yes, only report.")] = False,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Delete leftovers of old runs that no kept result needs: data, MLflow and Prefect records, ledger, logs."""
    from merganser.flows.commands.gc import collect_garbage, lines_of, time_before

    freed = collect_garbage(repo, time_before(keep), keep_best, yes)
    print(json.dumps(freed.as_json(), indent=2) if as_json else printable("\n".join(lines_of(freed))))


add_commands(app)

node.command("init", epilog=example("merganser node init ~/node"))(command_line.node_init)


@app.command(epilog=example("merganser ui --port 4280"))
def ui(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the start page; a free one if this is in use.")
    ] = 4280,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the addresses.")] = False,
    repo: RepoOption = Path(),
) -> None:
    """Serve the start page, the report, Prefect and MLflow, until stopped.

    Only this machine can reach them. Example: merganser ui --no-browser
    """
    from merganser.flows.pages.ui import has_browser, serve_pages

    serve_pages(repo, port, not no_browser and has_browser())


@app.command(epilog=example("merganser serve"))
def serve(repo: RepoOption = Path()) -> None:
    """Run the schedules of prefect.yaml on this machine, until stopped."""
    from merganser.flows.serve import serve_deployments

    serve_deployments(repo)
