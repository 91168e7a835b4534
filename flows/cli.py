"""The command line."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dvcfleet.errors import BUSY_EXIT_CODE, BusyError, SkippedError, UserError
from dvcfleet.gc_thresholds import raised_gc_thresholds
from flows import lineage_cli
from merganser.errors import InputError

EXIT_CODES = (
    "Exit codes: 0 done, 1 something failed, 2 your mistake, 75 another run or a dvc command is at work in the "
    "repository (try again later), 130 stopped by Ctrl-C, 143 stopped by SIGTERM."
)

app = typer.Typer(
    help="Compare model-merging methods at scale, and keep the evidence.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lineage_cli.app, name="lineage")
node = typer.Typer(help="Clones that serve as a cluster's nodes.", no_args_is_help=True)
app.add_typer(node, name="node")

RepoOption = Annotated[Path, typer.Option("--repo", metavar="DIR", help="The DVC repository, or a folder in it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


def main() -> None:
    """Run the command line; turn errors into messages and exit codes."""
    try:
        with raised_gc_thresholds():
            app()
    except SkippedError as skipped:
        print(skipped)
    except (InputError, UserError) as error:
        print(error, file=sys.stderr)
        sys.exit(BUSY_EXIT_CODE if isinstance(error, BusyError) else 2)


@app.command(epilog=EXIT_CODES)
def run(
    stages: Annotated[
        list[str] | None, typer.Argument(metavar="[STAGE ...]", help="Only these and what they need.")
    ] = None,
    runner: Annotated[
        Literal["threads", "processes", "ray", "dask"] | None,
        typer.Option(help="Where stages run: threads if not given."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray or Dask cluster; without it one starts on this machine."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads at once; as many as CPUs if not given.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where to run, by a name of profiles.yaml.")
    ] = None,
    pull: Annotated[
        bool,
        typer.Option("--pull", help="Fetch the results at the end, where nodes with clones of their own have them."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run also what is up to date.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why; run nothing.")] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Take the outputs of stages that are no longer in dvc.yaml out of the workspace; "
            "DVC's cache keeps them.",
        ),
    ] = False,
    busy: Annotated[
        Literal["refuse", "wait", "skip"], typer.Option(help="What to do while another run is at work here.")
    ] = "refuse",
    repo: RepoOption = Path(),
) -> None:
    """Run every stage that is not up to date, in parallel; run it again to go on after a failure or a kill."""
    from dvcfleet.run import run as run_stages

    code = run_stages(
        tuple(stages or ()),
        repo=repo,
        runner=runner,
        address=address,
        workers=workers,
        profile=profile,
        force=force,
        dry_run=dry_run,
        pull=pull,
        busy=busy,
        prune=prune,
    )
    raise typer.Exit(code)


@app.command()
def logs(
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Its name as `merganser run` prints it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the stage ends.")] = False,
    repo: RepoOption = Path(),
) -> None:
    """Print what a stage printed when it last ran."""
    from dvcfleet.logs import output_of

    for data in output_of(stage, repo, follow):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@app.command()
def status(as_json: JsonOption = False, repo: RepoOption = Path()) -> None:
    """Show every stage: up to date, restorable, stale (and why), waiting for another, or blocked."""
    from dvcfleet.planning.plan import plan

    found = plan(repo)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
        return
    from flows.tables import print_plan

    print_plan(found)


@app.command()
def suites(as_json: JsonOption = False, repo: RepoOption = Path()) -> None:
    """List the ready comparisons of suites/: model family, tasks, entries; * is the one in use."""
    from flows import tables
    from flows.suites import describe, root_of, suite_names

    root = root_of(repo)
    found = [describe(root, name) for name in suite_names(root)]
    if as_json:
        print(json.dumps([suite.as_json() for suite in found], indent=2))
    else:
        tables.print_suites(found)


@app.command(epilog=EXIT_CODES)
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A suite; `merganser suites` lists them.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace params.yaml also where its changes are lost.")
    ] = False,
    repo: RepoOption = Path(),
) -> None:
    """Put a suite's params.yaml in place; what was computed for another stays in DVC's cache."""
    from flows.suites import PARAMS, SUITES, root_of, use

    suite = use(root_of(repo), name, force)
    counts = f"{len(suite.tasks)} tasks, {len(suite.entries)} entries"
    print(f"{PARAMS} is that of {SUITES}/{name}: {suite.family}, {counts}")
    print("`merganser run --prune` makes it, and takes what only another comparison needs out of the workspace")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's parameters.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the registered methods: what each reads, its cost, its class, its parameters and its paper."""
    from flows import tables
    from merganser import registry

    chosen = [registry.get(each) for each in ([name] if name else registry.names())]
    described = [tables.describe_method(method) for method in chosen]
    if as_json:
        print(json.dumps(described[0] if name else described, indent=2))
    elif name:
        tables.print_method(described[0])
    else:
        tables.print_methods(described)


@app.command()
def merge(
    method: Annotated[str, typer.Argument(help="A registered method; `merganser methods` lists them.")],
    model: Annotated[list[str], typer.Option(metavar="NAME=PATH", help="A fine-tuned model; once per task.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the merged checkpoint.")],
    base: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The base: a checkpoint folder or file; else the models' mean.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A parameter of the method; merged=METHOD: start from what that method makes, not from the base; "
            "seed=N: of random masks.",
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A task's class names, one a line, for a method that needs them."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Merge these parameters only; the rest is the base's.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Layers at once; OMP_NUM_THREADS or the CPUs if not given.")
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of a file of weights, such as 5GB; as the base's if not given.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="Write time, memory and bytes as JSON.")] = None,
) -> None:
    """Merge checkpoints on disk into DIR: model.safetensors or shards, and overlays.safetensors for parts per task."""
    from merganser.checkpoints.kinds import ParameterRules
    from merganser.checkpoints.shards import parse_size
    from merganser.config.params import NAME
    from merganser.limits import parse_yaml

    models = _pairs("--model", model)
    for name in models:
        if not NAME.fullmatch(name):
            rule = "use at most 100 letters, digits, - and _, the first a letter or digit"
            raise InputError(f"--model {name}: not a name; {rule}")
    given = _pairs("--set", settings or [])
    values: dict[str, Any] = {key: parse_yaml(value, f"--set {key}") for key, value in given.items()}
    _refuse_existing(out)
    from merganser.workers import threads_wanted
    from tasks.standalone import merge_checkpoints

    paths = {name: Path(path) for name, path in models.items()}
    named = {name: _lines("--classes", Path(path)) for name, path in _pairs("--classes", classes or []).items()}
    rules = ParameterRules(merged=tuple(only or ["*"]))
    notes = merge_checkpoints(
        method,
        values,
        base,
        paths,
        out,
        classes=named,
        rules=rules,
        device=device,
        profile=profile,
        threads=threads or threads_wanted(),
        max_shard_size=parse_size(max_shard_size) if max_shard_size else None,
    )
    print(*notes, sep="\n", end="\n" if notes else "")
    print(f"{method} of {len(models)} models is in {out}")


@app.command()
def reconstruct(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `merge` wrote.")],
    task: Annotated[str, typer.Option(metavar="NAME", help="The task whose own model is wanted.")],
    out: Annotated[Path, typer.Option(metavar="PATH", help="A new safetensors file.")],
) -> None:
    """Write a task's own model, the shared part plus its overlay, as one safetensors file."""
    _refuse_existing(out)
    from merganser.overlays import write_task_model
    from merganser.routed import check_one_model

    check_one_model(folder, task)
    write_task_model(folder, task, out)
    print(f"the model of {task} is in {out}")


@node.command("init")
def node_init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A clone of the repository, for the node alone.")
    ] = Path(),
) -> None:
    """Make a clone a node: runs on a cluster may then rewrite its parameter files and delete what they do not need."""
    from dvcfleet.nodes.clone import make_node

    print(f"{make_node(folder)} is a node now: its files belong to the runs that use it")


@app.command()
def ui(repo: RepoOption = Path()) -> None:
    """Open the pages of Prefect and MLflow on this machine only, print their addresses, and serve until stopped."""
    from flows.ui import serve

    serve(repo)


@app.command()
def serve(repo: RepoOption = Path()) -> None:
    """Run what prefect.yaml schedules on this machine, until stopped."""
    from flows.serve import serve

    serve(repo)


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    """Split NAME=VALUE arguments; a name may come once."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{option}: expected NAME=VALUE, got {text!r}")
        if name in pairs:
            raise InputError(f"{option}: {name} is given twice")
        pairs[name] = value
    return pairs


def _lines(option: str, path: Path) -> list[str]:
    """Read a text file's lines, without empty ones."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {path}: cannot be read as text ({error})") from error
    found = [line for line in lines if line]
    if not found:
        raise InputError(f"{option} {path}: holds no class names; write one a line")
    return found


def _refuse_existing(out: Path) -> None:
    """Never write over what is there: an output is a new name, or an empty folder."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"--out {out}: is there already and not empty; name a new one, or remove it first")
