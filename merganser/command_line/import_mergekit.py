"""`merganser import-mergekit`: a configuration of mergekit in, a recipe and a comparison's params.yaml out."""

from pathlib import Path
from typing import Annotated

import typer

from merganser.outputs import refuse_existing


def import_mergekit(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A configuration of mergekit, such as config.yml.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for merge.yaml and params.yaml; by default named as CONFIG."),
    ] = None,
) -> None:
    """Turn a configuration of mergekit into merge.yaml, which `merganser merge` does, and params.yaml, to compare."""
    from merganser.config.recipes import RECIPE
    from merganser.standalone.mergekit.importing import PARAMS, imported, write_imported

    out = out or Path(config.stem)
    refuse_existing(out)
    found = imported(config)
    write_imported(found, config, out)
    print(*found.notes, sep="\n", end="\n" if found.notes else "")
    print(f"{config} is {found.method} of {len(found.models)} models: `merganser merge {out / RECIPE} --out DIR`")
    print(f"to measure it, give each task in {out / PARAMS} its data (docs/params.md)")
