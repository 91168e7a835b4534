"""The command line of what needs no repository; `merganser.flows.commands.cli` adds the rest to it."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from merganser.command_line.check import check
from merganser.command_line.extract_lora import extract_lora
from merganser.command_line.merge import merge, reconstruct
from merganser.command_line.trust import trust
from merganser.errors import InputError
from merganser.extras import naming_extras
from merganser.outputs import refuse_existing
from merganser.terminal.failures import EXIT_CODES, boundary
from merganser.terminal.secrets import say


class Listed(TyperCommand):
    """A command that accepts `--models a=A b=B` for `--models a=A --models b=B`, and the same for `--data`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Repeat the option before each further value."""
        told, option = list[str](), None
        for word in args:
            if option and "=" in word and not word.startswith("-") and told[-1] != option:
                told.append(option)
            option = word if word in ("--models", "--data") else option if "=" in word else None
            told.append(word)
        return super().parse_args(ctx, told)


def list_methods(
    name: Annotated[str | None, typer.Argument(help="Show everything about this method.")] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="KEY=VALUE,...",
            help="Filter, such as data=none,parts=no. Keys: data (none, validation, test), parts per task (yes, no), "
            "family, cost, needs.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """List the methods; with NAME, show everything about one."""
    from merganser import registry
    from merganser.command_line import output
    from merganser.descriptions import describe_method, matching

    chosen = [registry.describe(each) for each in ([name] if name else registry.names())]
    described = matching([describe_method(method) for method in chosen], wanted)
    if as_json:
        print(json.dumps(described[0] if name else described, indent=2))
    elif name:
        output.print_method(described[0])
    else:
        output.print_methods(described)


def explain_params(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="A key path, such as evaluation.batch_size or tasks.NAME.data."),
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print a JSON Schema, for checks and completion in editors."),
    ] = False,
) -> None:
    """Explain a key of params.yaml: type, default and an example. Without KEY, list all keys."""
    from merganser.config.describing import key_lines, schema_text

    if schema and key:
        raise InputError(f"{key}: --schema is of the whole file; leave the key out")
    print(schema_text() if schema else "\n".join([*key_lines(key or ""), ""]), end="")


def import_mergekit(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A mergekit configuration, such as config.yml.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for merge.yaml and params.yaml; default: CONFIG's name."),
    ] = None,
) -> None:
    """Convert a mergekit configuration to merge.yaml (for `merganser merge`) and params.yaml (for a comparison)."""
    from merganser.config.recipes import RECIPE
    from merganser.standalone.mergekit.importing import PARAMS, imported, write_imported

    out = out or Path(config.stem)
    refuse_existing(out)
    taken = imported(config)
    write_imported(taken, config, out)
    say(*taken.notes)
    print(f"{config} is {taken.method} of {len(taken.models)} models: `merganser merge {out / RECIPE} --out DIR`")
    print(f"to measure it, give each task in {out / PARAMS} its data (docs/params.md)")


def example(command: str, *more: str) -> str:
    """Return an example of a command, and further paragraphs, for its help."""
    return "\n\n".join([f"Example: {command}", *more])


def empty_app() -> typer.Typer:
    """Return a command line without commands."""
    app = typer.Typer(
        help="Compare model-merging methods at scale, and keep the evidence.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def add_commands(app: typer.Typer) -> None:
    """Add the commands that need no repository."""
    app.command("methods", epilog=example("merganser methods --for data=none,parts=no"))(list_methods)
    merging = "merganser merge tsv_m --base BASE --model one=PATH --model two=PATH --out merged"
    app.command("params", epilog=example("merganser params evaluation.batch_size", EXIT_CODES))(explain_params)
    app.command(epilog=example(merging))(merge)
    checking = "merganser check models/one models/two --base models/base"
    app.command(epilog=example(checking))(check)
    importing = "merganser import-mergekit config.yml --out brought"
    app.command(epilog=example(importing))(import_mergekit)
    extracting = "merganser extract-lora MODEL --base BASE --rank 32 --out adapter"
    app.command("extract-lora", epilog=example(extracting))(extract_lora)
    app.command(epilog=example("merganser reconstruct merged --task one --out one"))(reconstruct)
    app.command(epilog=example("merganser trust ~/merganser"))(trust)


def main() -> None:
    """Run the commands that need no repository; every error ends in a line and an exit code."""
    app = empty_app()
    add_commands(app)
    with boundary(), naming_extras():
        app(prog_name="merganser")  # also as `python -m merganser`


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"merganser {version('merganser')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle the options before a command."""
