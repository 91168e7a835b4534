"""Measure merges of language models by mergekit's configurations: `python -m benchmarks.peers [METHOD ...]`.

Models of TinyLlama's shape, as `benchmarks.language` makes them: a base and two models of 1.1 billion parameters in
bfloat16. Each configuration is merged by `mergekit-yaml`, and by `merganser merge` from the recipe that `merganser
import-mergekit` makes of it, in alternation, each as a separate process. METHOD is mergekit's name. Times, CPU seconds
and anonymous memory of both are printed. It takes nine gigabytes of disk.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import (
    MB,
    RESULTS,
    Measured,
    Run,
    as_table,
    as_text,
    described,
    field_of,
    machine,
    ratio,
    spread,
    write_results,
)
from benchmarks.language import LAYERS, made, on_terminal, shapes_of
from benchmarks.mergekit import alternated, installed, versions
from benchmarks.sides import Setting
from merganser.config.recipes import RECIPE
from merganser.standalone.mergekit.importing import imported, write_imported

MODELS, TIMES = 2, 1
# Of all models, and of the merge; `base`: whether it names one.
METHODS: Mapping[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "linear": ({"weight": 0.5}, {}, False),
    "task_arithmetic": ({"weight": 0.4}, {}, True),
    "ties": ({"weight": 1.0, "density": 0.2}, {}, True),
    "dare_linear": ({"weight": 0.4, "density": 0.2}, {}, True),
    "dare_ties": ({"weight": 0.4, "density": 0.2}, {}, True),
    "della": ({"weight": 1.0, "density": 0.2, "epsilon": 0.1}, {}, True),
    "breadcrumbs": ({"weight": 0.3, "density": 0.143, "gamma": 0.007}, {}, True),
    "sce": ({}, {"select_topk": 0.2}, True),
    "slerp": ({}, {"t": 0.4}, True),
    "nuslerp": ({"weight": 0.5}, {}, True),
    "karcher": ({}, {}, False),
    "model_stock": ({}, {}, True),
}
ONE = {"slerp"}  # of the base and one model


def main() -> None:
    """Measure each method on both sides, in alternation; print a table as Markdown, and write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"({', '.join(METHODS)})")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of each model ({LAYERS}: TinyLlama)")
    parser.add_argument("--times", type=int, default=TIMES, help=f"each side ({TIMES})")
    parser.add_argument("--threads", type=int, default=2, help="of a merge (2)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    parser.add_argument("--json", type=Path, default=RESULTS / "peers.json", help="where the figures go")
    options = parser.parse_args()
    print(f"{described(machine())}; {options.threads} threads a merge; {versions()}\n", flush=True)
    rows: dict[str, dict[str, list[Measured]]] = {}
    with made(options.folder, shapes_of(options.layers, None), options.threads) as models:
        for method in options.methods or METHODS:
            count = 1 if method in ONE else MODELS
            setting = replace(models, models=dict(list(models.models.items())[:count]))
            rows[method] = alternated(method, sides(method, setting), options.times)
            write_results(options.json, {"versions": versions(), "threads": options.threads, "rows": rows})
    print(table(rows))


def sides(method: str, setting: Setting) -> dict[str, Run]:
    """Return the merge by a configuration of this method by both programs."""
    config = setting.folder / f"{method}.yml"
    config.write_text(yaml.safe_dump(configuration(method, setting)))
    brought = setting.folder / f"brought-{method}"
    write_imported(imported(config), config, brought)
    ours = [sys.executable, "-m", "merganser.flows", "merge", str(brought / RECIPE)]
    ours += ["--device", "cpu", "--threads", str(setting.threads), "--out"]
    theirs = [str(installed().with_name("mergekit-yaml")), str(config), "--num-threads", str(setting.threads)]
    return {"ours": on_terminal(ours, "ours", setting), "mergekit": on_terminal(theirs, "mergekit", setting)}


def configuration(method: str, setting: Setting) -> dict[str, Any]:
    """Write mergekit's configuration of a method."""
    each, whole, base = METHODS[method]
    named = [setting.base, *setting.models.values()] if method in ONE else list(setting.models.values())
    models: list[dict[str, Any]] = [{"model": str(path)} | ({"parameters": each} if each else {}) for path in named]
    named_base = {"base_model": str(setting.base)} if base else {}
    return {"merge_method": method, "models": models, "dtype": "bfloat16", **named_base, "parameters": whole}


def table(rows: Mapping[str, Mapping[str, Sequence[Measured]]]) -> str:
    """Write what both took, and mergekit's over ours."""
    measures = (("wall_s", "s", 1.0, 1), ("cpu_s", "CPU s", 1.0, 1), ("peak_anonymous_bytes", "MB", MB, 0))
    heads = [head for _, unit, _, _ in measures for head in (f"ours, {unit}", f"mergekit, {unit}", "ratio")]
    lines = []
    for method, runs in rows.items():
        cells = [f"`{method}`"]
        for name, _, unit, digits in measures:
            found = {side: [value / unit for value in field_of(each, name)] for side, each in runs.items()}
            ours, other = found["ours"], found["mergekit"]
            cells += [as_text(spread(ours), digits), as_text(spread(other), digits), as_text(ratio(other, ours))]
        lines.append(cells)
    return as_table(["mergekit's method", *heads], lines)


if __name__ == "__main__":
    main()
