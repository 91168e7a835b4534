"""`merganser methods`: list the methods, or describe one."""

import json
from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's parameters.")] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="KEY=VALUE,...",
            help="Only these, such as data=none,parts=no: data none, validation or test; parts per task yes or no; "
            "family; cost; needs.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """List the registered methods and what each does, in the terminal's width; of one NAME, all about it."""
    from merganser import registry
    from merganser.command_line import tables
    from merganser.descriptions import describe_method, matching

    chosen = [registry.get(each) for each in ([name] if name else registry.names())]
    described = matching([describe_method(method) for method in chosen], wanted)
    if as_json:
        print(json.dumps(described[0] if name else described, indent=2))
    elif name:
        tables.print_method(described[0])
    else:
        tables.print_methods(described)
