"""`merganser merge` and `merganser reconstruct`: checkpoints on disk in, checkpoints on disk out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from merganser.errors import InputError
from merganser.limits import read_small
from merganser.outputs import refuse_existing
from merganser.terminal.secrets import say

if TYPE_CHECKING:
    from merganser.config.recipes import Recipe

RECIPES = (".yaml", ".yml")
RECIPE_KEYS = {"--model": "models", "--set": "parameters"}  # of options not called like their key in a recipe
NAMES_LIMIT = 2**25  # bytes: of a file of class names


def merge(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD|RECIPE",
            help="A method (`merganser methods` lists them), or a merge.yaml, to repeat that merge.",
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="A fine-tuned model, once per task: a checkpoint's folder or file, an adapter's folder, or "
            "org/name@revision on a hub.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new folder for the merged checkpoint. Default for a recipe: its folder's name with -again.",
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The base model, in the same form; default: the models' mean.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A parameter of the method. merged=METHOD starts from the merge by METHOD instead of the base; seed=N "
            "seeds random masks.",
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A task's class names, one per line, for methods that need them."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Merge only these parameters; the rest is the base's.")
    ] = None,
    excepted: Annotated[
        list[str] | None, typer.Option("--except", metavar="PATTERN", help="Keep these as in the base, such as heads.")
    ] = None,
    matrices: Annotated[
        Literal["linear", "any_2d"] | None,
        typer.Option(
            help="Parameters that count as matrices: linear maps, stacks of them and convolutions (default), or all "
            "with two dimensions."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(help="The merged model's dtype; default: as in the base."),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest file of weights, such as 5GB; default: as in the base.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="base|union|NAME",
            help="The merge's tokenizer: the base's, the base's plus the models' added tokens, or a model's. Rows of "
            "embeddings and heads are then matched by token. Without it, all vocabularies must be the same.",
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN=NAME", help="Take a token's rows from this model, or from base."),
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option(metavar="base|NAME", help="The merge's chat template; default: the tokenizer's.")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Where to compute; default: as in the recipe, or auto."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Layers at once; default: OMP_NUM_THREADS, or all CPUs.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="Write time, memory and bytes as JSON.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Merge nothing. Inspect the models, and show what the merge would do.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Like --dry-run, as JSON with stable keys.")] = False,
) -> None:
    """Merge checkpoints into a new folder: weights, overlays.safetensors for parts per task, and merge.yaml."""
    from merganser.config.recipes import read_recipe

    options: dict[str, Any] = {
        **{"--model": model, "--base": base, "--set": settings, "--classes": classes, "--only": only},
        **{"--except": excepted, "--matrices": matrices, "--dtype": dtype, "--max-shard-size": max_shard_size},
        **{"--tokenizer": tokenizer, "--rows": rows, "--chat-template": chat_template},
    }
    given = {name: value for name, value in options.items() if value}
    if method.endswith(RECIPES):
        if given:
            option = next(iter(given))
            key = RECIPE_KEYS.get(option) or option.removeprefix("--").replace("-", "_")
            raise InputError(f"{option}: set `{key}` in {method} instead, or name a method")
        recipe, where = read_recipe(Path(method)), Path(method)
        merged = where.resolve().parent
        out = out or merged.parent / f"{merged.name}-again"
    else:
        recipe, where = _recipe(method, given), Path("merge.yaml")
    if dry_run or as_json:
        from merganser.command_line.check import show
        from merganser.standalone.check import check_merge

        show(check_merge(recipe, where), as_json)
        return
    if out is None:
        raise InputError("--out: missing; name a new folder for the merged checkpoint")
    from merganser.command_line.output import progress_bar
    from merganser.standalone.merge import merge_by
    from merganser.workers import threads_wanted

    refuse_existing(out)
    recipe = recipe.model_copy(update={"device": device} if device else {})
    with progress_bar() as progress:
        notes = merge_by(recipe, where, out, profile=profile, threads=threads or threads_wanted(), progress=progress)
    say(*notes)
    print(f"{recipe.method} of {len(recipe.models)} models is in {out}")


def _recipe(method: str, given: dict[str, Any]) -> "Recipe":
    from merganser.checkpoints.writing import parse_size
    from merganser.config.recipes import Recipe, source_named
    from merganser.config.sections import NAME
    from merganser.limits import parse_yaml

    models = named_values("--model", given.get("--model", []))
    if not models:
        raise InputError("--model: name a fine-tuned model by --model NAME=PATH, once per task")
    for name in models:
        if not NAME.fullmatch(name):
            rule = "use at most 100 letters, digits, - and _, the first a letter or digit"
            raise InputError(f"--model {name}: not a name; {rule}")
    values = {
        key: parse_yaml(value, f"--set {key}") for key, value in named_values("--set", given.get("--set", [])).items()
    }
    named = {
        name: _lines("--classes", Path(path))
        for name, path in named_values("--classes", given.get("--classes", [])).items()
    }
    size = given.get("--max-shard-size")
    return Recipe(
        method=method,
        parameters=values,
        base=source_named(given["--base"]) if "--base" in given else None,
        models={name: source_named(text) for name, text in models.items()},
        classes=named,
        only=given.get("--only", ["*"]),
        excepted=given.get("--except", []),
        matrices=given.get("--matrices", "linear"),
        dtype=given.get("--dtype"),
        max_shard_size=parse_size(size) if size else None,
        tokenizer=given.get("--tokenizer"),
        rows=named_values("--rows", given.get("--rows", []), last=True),
        chat_template=given.get("--chat-template"),
    )


def reconstruct(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `merganser merge`.")],
    out: Annotated[
        Path,
        typer.Option(metavar="PATH", help="A new folder, or a new .safetensors file for the weights alone."),
    ],
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The task to restore; leave it out for a merge of adapters."),
    ] = None,
    as_adapter: Annotated[
        bool, typer.Option("--as-adapter", help="Write low-rank parts as a PEFT adapter, into a folder.")
    ] = False,
) -> None:
    """Restore one task's model from a merge: the shared part plus its overlay, with head and configuration."""
    from merganser.standalone import reconstruct

    refuse_existing(out)
    if as_adapter and task is None:
        reconstruct.write_merged_adapter(folder, out)
        print(f"the adapter of {folder} for its base is in {out}")
        return
    if task is None:
        raise InputError("--task: missing; name the task to reconstruct")
    if as_adapter:
        reconstruct.write_adapter_of(folder, task, out)
        print(f"the adapter of {task}, for the model in {folder}, is in {out}")
        return
    notes = reconstruct.write_model_of(folder, task, out)
    say(*notes)
    print(f"the model of {task} is in {out}")


def named_values(option: str, given: list[str], last: bool = False) -> dict[str, str]:
    """Split NAME=VALUE arguments, at the first = or the last; a name may come once."""
    named: dict[str, str] = {}
    for text in given:
        name, equals, value = text.rpartition("=") if last else text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{option}: expected NAME=VALUE, got {text!r}")
        if name in named:
            raise InputError(f"{option}: {name} is given twice")
        named[name] = value
    return named


def _lines(option: str, path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in read_small(path, NAMES_LIMIT).decode().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {path}: cannot be read as text ({error})") from error
    kept = [line for line in lines if line]
    if not kept:
        raise InputError(f"{option} {path}: holds no class names; write one a line")
    return kept
