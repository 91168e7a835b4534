"""`merganser check`, and what `merganser merge --dry-run` prints: what models are, and what merging them would do."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from merganser.errors import InputError, some
from merganser.terminal.secrets import say

if TYPE_CHECKING:
    from merganser.standalone.check import ModelCheck

SHOWN = 5


def check(
    model: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Models: each a folder, a file, or org/name@revision on a hub."),
    ],
    base: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model they were fine-tuned from; default: the first.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Merge only these parameters.")] = None,
    excepted: Annotated[
        list[str] | None, typer.Option("--except", metavar="PATTERN", help="Keep these as in the base, such as heads.")
    ] = None,
    matrices: Annotated[
        Literal["linear", "any_2d"], typer.Option(help="Parameters that count as matrices, as for `merge`.")
    ] = "linear",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Inspect models: architecture, compatibility, and what a merge would copy, write and cost."""
    from merganser.checkpoints.kinds import ParameterRules
    from merganser.config.recipes import path_of, source_named
    from merganser.standalone.check import check_models

    texts = [*([base] if base else []), *model]
    twice = [text for number, text in enumerate(texts) if text in texts[:number]]
    if twice:
        raise InputError(f"{twice[0]}: is given twice")
    paths = {text: path_of(source_named(text), Path()) for text in texts}
    rules = ParameterRules(only or ["*"], matrices, excepted or [], flags=True)
    show(check_models(paths, rules), as_json)


def show(checked: "ModelCheck", as_json: bool) -> None:
    """Print what a check found; raise InputError where it refuses something."""
    if as_json:
        print(json.dumps(asdict(checked), indent=2))
    else:
        _print_models(checked.models)
        say(*checked.notes)
        if checked.merge:
            _print_merge(checked.merge)
    if checked.refused:
        raise InputError("\n".join(checked.refused))


def _print_models(models: Mapping[str, Mapping[str, Any]]) -> None:
    from merganser.command_line.output import print_table

    headings = (
        "model",
        "architecture",
        "dtype",
        "parameters",
        "size",
        "files",
        "tokens",
        "chat template",
        "tied",
        "heads",
    )
    print_table(headings, [(name, *_cells(each)) for name, each in models.items()])


def _cells(model: Mapping[str, Any]) -> tuple[str, ...]:
    said = model["architectures"] or []
    kind = ", ".join(map(str, said if isinstance(said, list) else [said])) or str(model["model_type"] or "not said")
    return (
        f"adapter of {model['trained_on'] or 'a model that is not named'}" if model["kind"] == "adapter" else kind,
        ", ".join(model["dtypes"]),
        f"{model['parameters']:,}",
        _size(model["bytes"]),
        str(len(model["files"])),
        "not said" if model["tokens"] is None else f"{model['tokens']:,}",
        "yes" if model["chat_template"] else "no",
        "yes" if model["tie_word_embeddings"] or model["second_names"] else "no",
        some(model["heads"], SHOWN) or "none",
    )


def _print_merge(merge: Mapping[str, Any]) -> None:
    what = f"{merge['matrices']} matrices and {merge['vectors']} other parameters, {merge['parameters']:,} values"
    print(f"would be merged: {what}")
    print(f"would be copied from the base: {some(merge['copied'], SHOWN) or 'none'}")
    print(f"would be written: {_size(merge['bytes'])} of weights in {merge['files']} file(s)")
    for cost, expected in merge["expected"].items():
        takes = f"{expected['seconds']:.0f} s on one core and {_size(expected['memory_bytes'])} of memory"
        print(f"about {takes}, by a method of cost {cost}")


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
