"""The command line of what needs no repository; `merganser.flows.commands.cli` adds the rest to it."""

from importlib.metadata import version
from typing import Annotated

import typer

from merganser.command_line.check import check
from merganser.command_line.extract_lora import extract_lora
from merganser.command_line.import_mergekit import import_mergekit
from merganser.command_line.merge import merge, reconstruct
from merganser.command_line.methods import methods
from merganser.command_line.trust import trust
from merganser.extras import naming_extras
from merganser.terminal.failures import EXIT_CODES, boundary


def example(command: str, *more: str) -> str:
    """Give an example of a command, and more paragraphs, to stand there."""
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
    app.command(epilog=example("merganser methods --for data=none,parts=no"))(methods)
    merging = "merganser merge tsv_m --base BASE --model one=PATH --model two=PATH --out merged"
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
    """Run the command line of what needs no repository; every error ends in a line and an exit code."""
    app = empty_app()
    add_commands(app)
    with boundary(), naming_extras():
        app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"merganser {version('merganser')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that come before a command."""
