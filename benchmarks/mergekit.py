"""Measure merges against mergekit's, for the methods that it has: `python -m benchmarks.mergekit [METHOD ...]`.

mergekit (LGPL-3.0) runs in an environment of its own, made on the first call under build/, which borrows torch and the
like from this one. Its `mergekit-pytorch` reads the same checkpoints, and both write the image tower only: it writes
what all models have. It gets as many threads of torch; its other options for speed and memory are for GPUs and pickles.
"""

import argparse
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.errors import far
from benchmarks.harness import (
    MB,
    RESULTS,
    ROOT,
    Measured,
    Run,
    alternate,
    as_table,
    as_text,
    described,
    field_of,
    machine,
    ratio,
    spread,
    write_results,
)
from benchmarks.models import BLOCKS, TOWER
from benchmarks.sides import Setting, cold, made, writing
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import write_checkpoint

HOME = ROOT / "build" / "mergekit"
NEEDED = Path(__file__).with_suffix(".txt")
TIMES = 3


@dataclass(frozen=True)
class Kin:
    """A merge of mergekit's: its parameters, such that it does what our method does with its defaults."""

    method: str
    weight: float  # of each model
    same: bool  # computes the same; else it trims each parameter and not the whole vector, or draws its own masks
    parameters: tuple[tuple[str, float], ...] = ()


KIN = {
    "average": Kin("linear", 1.0, True),
    "task_arithmetic": Kin("task_arithmetic", 0.4, True),
    "ties": Kin("ties", 1.0, False, (("density", 0.2),)),
    "dare": Kin("dare_linear", 0.4, False, (("density", 0.2),)),
    "della": Kin("della", 1.0, False, (("density", 0.2), ("epsilon", 0.1))),
    "breadcrumbs": Kin("breadcrumbs", 0.3, True, (("density", 0.143), ("gamma", 0.007))),
}


@dataclass(frozen=True)
class Row:
    """What was measured of one method."""

    method: str
    kin: Kin | None  # None: it has none
    runs: dict[str, list[Measured]]  # ours, mergekit
    error: float | None  # of the merged delta: ours from mergekit's, relative, where both compute the same


def main() -> None:
    """Measure both, in alternation; print a table as Markdown, and write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"({', '.join(KIN)})")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"of the image tower ({BLOCKS}: ViT-B/32)")
    parser.add_argument("--times", type=int, default=TIMES, help=f"each side ({TIMES})")
    parser.add_argument("--threads", type=int, default=2, help="of a merge (2)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    parser.add_argument("--json", type=Path, default=RESULTS / "mergekit.json", help="where the figures go")
    options = parser.parse_args()
    program = installed()
    print(f"{described(machine())}; {options.threads} threads a merge; {versions()}\n", flush=True)
    rows = []
    with made(options.folder, options.blocks, options.threads) as models:
        setting = replace(models, base=tower_of(models.base, models.folder / "tower.safetensors"))
        for method in options.methods or KIN:
            rows.append(measured(method, program, setting, options.times))
            write_results(options.json, {"versions": versions(), "threads": options.threads, "rows": rows})
    print(table(rows))


def installed() -> Path:
    """Make mergekit's environment unless it is there; return its program."""
    program, done = HOME / "bin" / "mergekit-pytorch", HOME / "installed.txt"
    if not (done.is_file() and done.read_bytes() == NEEDED.read_bytes()):
        venv.create(HOME, clear=True)
        python = HOME / "bin" / "python"
        ours = sysconfig.get_path("purelib")
        site = Path(sysconfig.get_path("purelib", vars={"base": str(HOME), "platbase": str(HOME)}))
        (site / "borrowed.pth").write_text(f"{ours}\n")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, "--no-deps", "-r", str(NEEDED)], check=True)
        done.write_bytes(NEEDED.read_bytes())
    return program


def versions() -> str:
    """Say which mergekit it is."""
    return next(line for line in NEEDED.read_text().splitlines() if line.startswith("mergekit==")).replace("==", " ")


def tower_of(base: Path, out: Path) -> Path:
    """Write what of the base is merged as a checkpoint of its own."""
    whole = open_checkpoint(base)
    specs = {name: whole.spec(name) for name in whole.names if name.startswith(TOWER)}
    write_checkpoint(out, specs, ((name, whole.read(name)) for name in specs))
    return out


def measured(method: str, program: Path, setting: Setting, times: int) -> Row:
    """Measure one method on both sides."""
    kin = KIN[method]
    runs = alternated(method, {"ours": cold(method, setting), "mergekit": theirs(kin, program, setting)}, times)
    error = far(setting.folder / "cold", setting.folder / "mergekit", setting.base) if kin.same else None
    return Row(method, kin, runs, error)


def alternated(method: str, sides: dict[str, Run], times: int) -> dict[str, list[Measured]]:
    """Measure the sides so many times in turn, and say what each took."""

    def said(side: str, run: Measured) -> None:
        memory = f"{run.peak_anonymous_bytes / MB:.0f} MB anonymous"
        print(f"`{method}`, {side}: {run.wall_s:.1f} s, CPU {run.cpu_s:.1f} s, {memory}", file=sys.stderr, flush=True)

    return alternate(sides, dict.fromkeys(sides, times), said)


def theirs(kin: Kin, program: Path, setting: Setting) -> Run:
    """Merge by mergekit."""
    models = [str(path / "model.safetensors") for path in setting.models.values()]
    parameters = {"weight": kin.weight, **dict(kin.parameters)}
    config: dict[str, Any] = {
        "merge_method": kin.method,
        "models": [{"model": model, "parameters": parameters} for model in models],
    }
    if kin.method != "linear":
        config["base_model"] = str(setting.base)
    file = setting.folder / f"{kin.method}.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [str(program), str(file), "--num-threads", str(setting.threads), "--quiet"]
    return writing("mergekit", command, setting, option=None)


def table(rows: Sequence[Row]) -> str:
    """Write the times and the memory of both, and mergekit's over ours."""
    heads = [
        "method",
        "mergekit's",
        "ours, s",
        "mergekit, s",
        "ratio",
        "ours, MB",
        "mergekit, MB",
        "ratio",
        "difference",
    ]
    lines = []
    for row in rows:
        cells = [f"`{row.method}`", f"`{row.kin.method}`" if row.kin else "–"]
        for name, unit, digits in (("wall_s", 1.0, 1), ("peak_anonymous_bytes", MB, 0)):
            found = {side: [value / unit for value in field_of(runs, name)] for side, runs in row.runs.items()}
            ours, other = found["ours"], found.get("mergekit")
            cells += [as_text(spread(ours), digits)]
            cells += [as_text(spread(other), digits), as_text(ratio(other, ours))] if other else ["–", "–"]
        lines.append([*cells, _difference(row)])
    return as_table(heads, lines)


def _difference(row: Row) -> str:
    if row.error is not None:
        return f"{row.error:.0e}"
    return "another merge" if row.kin and not row.kin.same else "–"


if __name__ == "__main__":
    main()
