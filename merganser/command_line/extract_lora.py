"""`merganser extract-lora`: what fine-tuning changed of a model, as an adapter in PEFT's format."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from merganser.errors import some
from merganser.outputs import refuse_existing
from merganser.terminal.secrets import say

if TYPE_CHECKING:
    from merganser.standalone.extract_lora import LayerError

SHOWN = 5


def extract_lora(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="The fine-tuned model: a folder, a file, or org/name@revision on a hub."),
    ],
    base: Annotated[str, typer.Option(metavar="MODEL", help="The model it was fine-tuned from, in the same form.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the adapter.")],
    rank: Annotated[int | None, typer.Option(min=1, metavar="R", help="The rank of each layer's update.")] = None,
    energy: Annotated[
        float | None,
        typer.Option(
            metavar="E",
            help="Instead of --rank: each layer's lowest rank that keeps this share of its change's squared norm.",
        ),
    ] = None,
    saved: Annotated[
        list[str] | None,
        typer.Option(
            "--modules-to-save", metavar="PATTERN", help="Save the modules of these parameters whole, such as '*norm*'."
        ),
    ] = None,
    biases: Annotated[bool, typer.Option("--biases", help="Save the biases.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Extract only these parameters.")] = None,
    excepted: Annotated[
        list[str] | None, typer.Option("--except", metavar="PATTERN", help="Leave these as in the base, such as heads.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Layers at once; default: OMP_NUM_THREADS, or all CPUs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each layer's error as JSON with stable keys.")] = False,
) -> None:
    """Extract a LoRA adapter from a fine-tuned model and its base. Prints each layer's error."""
    from merganser.checkpoints.kinds import ParameterRules
    from merganser.command_line.output import progress_bar
    from merganser.config.recipes import source_named
    from merganser.standalone.extract_lora import Cut, extract_adapter
    from merganser.workers import threads_wanted

    cut = Cut(rank, energy)
    refuse_existing(out)
    rules = ParameterRules(only or ["*"], heads=excepted or [], flags=True)
    named, threads = (source_named(model), source_named(base)), threads or threads_wanted()
    options: dict[str, Any] = {"rules": rules, "saved": saved or (), "biases": biases, "threads": threads}
    with progress_bar() as progress:
        layers, notes = extract_adapter(*named, out, cut, **options, progress=progress)
    norm, error = (sum(getattr(each, key) ** 2 for each in layers) ** 0.5 for key in ("norm", "error"))
    if as_json:
        print(json.dumps({"layers": [asdict(each) for each in layers], "norm": norm, "error": error, "notes": notes}))
        return
    say(*notes)
    _print_layers(layers)
    print(f"the adapter of {model} for {base} is in {out}: it loses {_share(error, norm)} of the fine-tuning's change")


def _print_layers(layers: "list[LayerError]") -> None:
    from merganser.command_line.output import print_table

    rows = [
        (e.name, "whole" if e.rank is None else str(e.rank), _share(e.error, e.norm)) for e in layers if e.rank != 0
    ]
    print_table(("parameter", "rank", "error"), rows)
    left = [each.name for each in layers if each.rank == 0]
    if left:
        remedy = "--modules-to-save PATTERN or --biases saves them whole"
        print(f"changed, and not in the adapter: {some(left, SHOWN)}; {remedy}")


def _share(error: float, norm: float) -> str:
    return f"{100 * error / norm if norm else 0:.3g} %"
