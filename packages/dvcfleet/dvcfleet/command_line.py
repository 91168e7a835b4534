"""The command line of the engine: `dvcfleet run`, `status`, `logs` and `node init`, in any DVC repository."""

import json
import re
import sys
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from dvcfleet.errors import UserError
from dvcfleet.process_settings import raise_gc_thresholds, reach_this_machine
from dvcfleet.repository import existing_state_folder, pipeline_folder
from dvcfleet.runners import own_names, runner_names
from dvcfleet.terminal.failures import EXIT_CODES, boundary

NEEDED = ("dvc", "prefect")
# Options, by their panels of --help.
REPRO = partial(typer.Option, rich_help_panel="As `dvc repro`")
WHERE = partial(typer.Option, rich_help_panel="Where, and how")


def complete_stage(incomplete: str) -> list[str]:
    """Complete the name of a stage, from dvc.lock: DVC takes seconds to read dvc.yaml."""
    lock_file = pipeline_folder(Path()) / "dvc.lock"
    text = lock_file.read_text(encoding="utf-8", errors="replace") if lock_file.is_file() else ""
    return sorted(name for name in re.findall(r"^  (\S+):$", text, re.MULTILINE) if name.startswith(incomplete))


def complete_runner(incomplete: str) -> list[str]:
    """Complete the name of a runner."""
    return [name for name in runner_names() if name.startswith(incomplete)]


RepoOption = Annotated[Path, typer.Option("--repo", metavar="DIR", help="The DVC repository, or a folder in it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


def run(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET ...]",
            help="Only these and their inputs: stages, templates, outputs, FOLDER/dvc.yaml[:STAGE], .dvc files.",
            autocompletion=complete_stage,
        ),
    ] = None,
    force: Annotated[bool, REPRO("--force", "-f", help="Also run stages that are up to date.")] = False,
    single_item: Annotated[bool, REPRO("--single-item", "-s", help="Run only the targets, not their inputs.")] = False,
    downstream: Annotated[bool, REPRO("--downstream", help="Run the targets and all downstream stages.")] = False,
    pipeline: Annotated[bool, REPRO("--pipeline", "-p", help="Run the targets' whole pipelines.")] = False,
    all_pipelines: Annotated[bool, REPRO("--all-pipelines", "-P", help="Run all stages of the repository.")] = False,
    recursive: Annotated[bool, REPRO("--recursive", "-R", help="Run all stages in the target folders.")] = False,
    glob: Annotated[bool, REPRO("--glob", help="Treat targets as patterns of stage names.")] = False,
    force_downstream: Annotated[
        bool, REPRO("--force-downstream", help="Also run everything downstream of a stage that ran.")
    ] = False,
    pull: Annotated[bool, REPRO("--pull", help="Pull missing data, and the run cache, from the remote.")] = False,
    allow_missing: Annotated[
        bool, REPRO("--allow-missing", help="Skip stages with missing data but no other changes.")
    ] = False,
    no_run_cache: Annotated[bool, REPRO("--no-run-cache", help="Do not restore results from the run cache.")] = False,
    no_commit: Annotated[bool, REPRO("--no-commit", help="Do not store outputs in DVC's cache.")] = False,
    keep_going: Annotated[
        bool, REPRO("--keep-going", "-k", help="No effect: a run always goes on after a failure.")
    ] = False,
    dry_run: Annotated[
        bool, REPRO("--dry-run", "--dry", help="Show what would run, why, and the expected cost.")
    ] = False,
    runner: Annotated[
        str | None,
        WHERE(
            metavar="NAME",
            help=f"Runner: {', '.join(own_names())}, or another package's; threads if not given.",
            autocompletion=complete_runner,
        ),
    ] = None,
    address: Annotated[
        str | None, WHERE(metavar="HOST:PORT", help="The runner's cluster; without it, one starts on this machine.")
    ] = None,
    workers: Annotated[int | None, WHERE(min=1, metavar="N", help="Threads at once; default: one per CPU.")] = None,
    profile: Annotated[str | None, WHERE(metavar="NAME", help="Where to run: a profile of profiles.yaml.")] = None,
    fetch_results: Annotated[
        bool,
        WHERE("--fetch-results", help="Fetch the results at the end if nodes with their own clones have them."),
    ] = False,
    in_order: Annotated[
        bool, WHERE("--in-order", help="Run one stage at a time in `dvc repro`'s order; stop at a failure.")
    ] = False,
    prune: Annotated[
        bool,
        WHERE(
            "--prune",
            help="Remove outputs of stages that are no longer in dvc.yaml from the workspace; DVC's cache keeps them.",
        ),
    ] = False,
    save_experiment: Annotated[
        bool,
        WHERE("--save-experiment", help="Save a successful run as a DVC experiment of its name."),
    ] = False,
    busy: Annotated[
        Literal["refuse", "wait", "skip"], WHERE(help="What to do while another run is active here.")
    ] = "refuse",
    repo: RepoOption = Path(),
) -> None:
    """Run every stale stage in parallel. After a failure or a kill, run it again to resume."""
    from dvcfleet.options import Options
    from dvcfleet.run import run as run_stages

    asked = Options(
        tuple(targets or ()),
        glob=glob,
        recursive=recursive,
        single_item=single_item,
        pipeline=pipeline,
        all_pipelines=all_pipelines,
        downstream=downstream,
        force=force,
        force_downstream=force_downstream,
        pull=pull,
        allow_missing=allow_missing,
        no_run_cache=no_run_cache,
        no_commit=no_commit,
        in_order=in_order,
        prune=prune,
        fetch_results=fetch_results,
        save_experiment=save_experiment,
    )
    code = run_stages(
        asked,
        repo=repo,
        runner=runner,
        address=address,
        workers=workers,
        profile=profile,
        dry_run=dry_run,
        busy=busy,
    )
    raise typer.Exit(code)


def status(
    show_all: Annotated[bool, typer.Option("--all", help="Show the stages that are up to date, too.")] = False,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Show the stages that are not up to date: restorable, stale (and why), waiting for another, or blocked."""
    from dvcfleet.planning.orphans import orphan_lines
    from dvcfleet.planning.plan import plan
    from dvcfleet.waiting import said_if_long

    with said_if_long() as step:
        status_plan = plan(repo, step=step)
    if as_json:
        print(json.dumps(status_plan.as_json(), indent=2))
        return
    shown = list(status_plan.planned.values()) if show_all else status_plan.work
    rows = [(planned.name, planned.state.value, "; ".join(planned.reasons)) for planned in shown]
    table = _columns([("stage", "state", "why"), *rows]) if rows else []
    for line in (*table, *orphan_lines(status_plan.orphans)):
        print(line)
    counts = status_plan.as_json()["counts"]
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no stages")


def logs(
    stage: Annotated[
        str,
        typer.Argument(metavar="STAGE", help="The stage's name, as `run` prints it.", autocompletion=complete_stage),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the stage ends.")] = False,
    repo: RepoOption = Path(),
) -> None:
    """Print the output of a stage's last run."""
    from dvcfleet.worker.output import output_of

    for data in output_of(stage, repo, follow):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def node_init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A clone of the repository, for the node alone.")
    ] = Path(),
) -> None:
    """Make a clone a node. Cluster runs may then rewrite its parameter files and delete files they do not need."""
    from dvcfleet.workspaces.nodes.clone import make_node

    print(f"{make_node(folder)} is a node now: runs that use it may overwrite and delete its files")


def _columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return lines whose cells stand below one another."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def new_app() -> typer.Typer:
    """Return the command line `dvcfleet`."""
    app = typer.Typer(
        help="Run the stages of a DVC repository in parallel.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(epilog=f"Example: dvcfleet run --workers 4\n\n{EXIT_CODES}")(run)
    app.command(epilog="Example: dvcfleet status --json")(status)
    app.command(epilog="Example: dvcfleet logs train --follow")(logs)
    node = typer.Typer(help="Prepare clones as cluster nodes.", no_args_is_help=True)
    node.command("init", epilog="Example: dvcfleet node init ~/node")(node_init)
    app.add_typer(node, name="node")
    return app


def main() -> None:
    """Run the command line; every error ends in a line and an exit code."""
    raise_gc_thresholds()
    reach_this_machine()
    with boundary(state_folder=named_state_folder):
        if lacking := [name for name in NEEDED if find_spec(name) is None]:
            raise UserError(f"dvcfleet needs {' and '.join(lacking)}: pip install {' '.join(lacking)}")
        new_app()()


def named_state_folder() -> Path | None:
    """Return the state folder of the repository that the command line names, or else is in; None if there is none."""
    named = re.search(r"(?:^|\0)--repo[=\0]([^\0]+)", "\0".join(sys.argv))
    return existing_state_folder(Path(named[1] if named else "."))
