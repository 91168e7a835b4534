"""Measure merges of ViT-B/32-sized checkpoints against plain programs: `python -m benchmarks.merges [METHOD ...]`.

Every side is a process of its own, from checkpoints on disk to a merged checkpoint on disk:

    cold     `merganser merge METHOD`
    cached   the pipeline's own stage, where a method reads the factors that `decompose` has written
    plain    the formula on whole state dicts (benchmarks/plain)
    copy     reading all the inputs and writing as many bytes as the merged model has, for task arithmetic
    load     the same with tensors: safetensors' load_file and save_file
    start    the plain program, ended after a while: what it holds by then, where all of it would take too long
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.errors import LAYERWISE, far, from_exact
from benchmarks.harness import (
    MB,
    RESULTS,
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
from benchmarks.models import BLOCKS
from benchmarks.plain.__main__ import METHODS
from benchmarks.sides import Setting, cached, cold, copying, loading, made, plain
from merganser import registry

FEW, MORE = 1, 2  # blocks
TIMES = 3
LONG = ("iso_cts", "dts_t", "sftm", "drm_h", "knots")  # in short these are compared on few blocks
LONGER = ("iso_cts", "sftm", "drm_h")  # and of these, ours on all of them too, beside what the plain program loads
START = 12.0  # s of a plain program: it has loaded all by then
ONCE = ("task_arithmetic", "ties", "tsv_m", "iso_c", *LONG)  # plain programs that take ten seconds or more
TWICE = ("ties", "tsv_m", "iso_c")  # ours, in short
NONE = "–"


@dataclass(frozen=True)
class Job:
    """A method to measure on models of so many blocks, ours alone or against the others."""

    method: str
    blocks: int
    alone: bool = False
    times: int = TIMES  # ours
    start: bool = False  # beside ours alone, the plain program's


@dataclass(frozen=True)
class Row:
    """What was measured of one method on models of so many blocks."""

    method: str
    blocks: int
    runs: dict[str, list[Measured]]  # by side
    apart: float | None  # of the merged delta: ours from the plain one, relative
    errors: dict[str, float]  # by side: of one layer's, from float64's
    amr: float  # bytes a task keeps for itself, over those of the merged parameters


def main() -> None:
    """Measure the methods asked for; print tables as Markdown, and write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"({', '.join(METHODS)})")
    parser.add_argument("--all", action="store_true", help="every registered method, ours alone")
    parser.add_argument("--short", action="store_true", help="the slowest on few blocks; memory on two sizes")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"of the image tower ({BLOCKS}: ViT-B/32)")
    parser.add_argument("--times", type=int, help=f"each side ({TIMES}; once a plain program of ten seconds or more)")
    parser.add_argument("--threads", type=int, default=2, help="of a merge, and BLAS threads of a plain program (2)")
    parser.add_argument("--folder", type=Path, help="keep the models here, and use them again (a temporary folder)")
    parser.add_argument("--json", type=Path, default=RESULTS / "merges.json", help="where the figures go")
    options = parser.parse_args()
    print(f"{described(machine())}; {options.threads} threads a merge\n", flush=True)
    alone = [name for name in registry.names() if len(registry.get(name).needs) == 1]
    jobs = [Job(name, options.blocks, alone=True) for name in alone] if options.all else []
    jobs = jobs or planned(options.methods or METHODS, options.blocks, options.short)
    rows = []
    with ExitStack() as stack:
        sizes = {job.blocks for job in jobs}
        models = {size: stack.enter_context(made(options.folder, size, options.threads)) for size in sizes}
        for job in jobs:
            rows.append(measured(job, models[job.blocks], options.times))
            write_results(options.json, {"threads": options.threads, "rows": rows})
    print("\n\n".join(tables(rows)))


def planned(methods: Iterable[str], blocks: int, short: bool) -> list[Job]:
    """List what to measure; in short, ours on two sizes and the slowest programs on the smaller one only."""
    if not short:
        return [Job(method, blocks) for method in methods]
    return [job for name in methods for job in in_short(name, blocks)]


def in_short(method: str, blocks: int) -> list[Job]:
    """Plan one method's comparison, on few blocks if it is a slow one, and its merge on another size for its memory."""
    if method in LONG:
        whole = method in LONGER
        return [Job(method, FEW, times=1), Job(method, blocks if whole else MORE, alone=True, times=1, start=whole)]
    return [Job(method, FEW, alone=True, times=1), Job(method, blocks, times=2 if method in TWICE else TIMES)]


def measured(job: Job, setting: Setting, times: int | None = None) -> Row:
    """Measure all sides of one method in alternation, and how far their results are apart."""
    sides = dict(sides_of(job, setting))
    counts = {
        side: times or (1 if side == "start" or (side == "plain" and job.method in ONCE) else job.times)
        for side in sides
    }

    def said(side: str, run: Measured) -> None:
        memory = f"{run.peak_anonymous_bytes / MB:.0f} MB anonymous"
        print(f"{label(job)}, {side}: {run.wall_s:.1f} s, CPU {run.cpu_s:.1f} s, {memory}", file=sys.stderr, flush=True)

    runs = alternate(sides, counts, said)
    rate = json.loads(setting.profile.read_text())["amr"]
    ours, theirs = setting.folder / "cold", setting.folder / "plain"
    apart = far(ours, theirs, setting.base) if "plain" in sides else None
    compared = [ours, theirs] if "plain" in sides and job.method in LAYERWISE else []
    errors = {out.name: from_exact(job.method, out, setting.base, setting.models.values()) for out in compared}
    return Row(job.method, job.blocks, runs, apart, errors, rate)


def sides_of(job: Job, setting: Setting) -> Iterator[tuple[str, Run]]:
    """Give the sides of a comparison."""
    yield "cold", cold(job.method, setting)
    if job.start:
        yield "start", replace(plain(job.method, setting), until_s=START)
    if job.alone:
        return
    if registry.get(job.method).reads == "svd":
        yield "cached", cached(job.method, setting)
    if job.method in METHODS:
        yield "plain", plain(job.method, setting)
    if job.method == "task_arithmetic":
        yield "copy", copying(setting)
        yield "load", loading(setting)


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Write what was measured: times against the plain programs', memory against the number of layers, and the rest."""
    if compared := [row for row in rows if "plain" in row.runs]:
        yield comparison(compared)
    if copies := [row for row in rows if "copy" in row.runs]:
        yield "\n".join(map(against_copying, copies))
    if sizes := growths(rows):
        yield growth(sizes)
    if alone := [
        row for row in rows if "plain" not in row.runs and row.method not in {large.method for _, large in sizes}
    ]:
        yield costs(alone)


def comparison(rows: Sequence[Row]) -> str:
    """Write the times and the memory of each side, and the plain program's over ours."""
    heads = ["method", "cold, s", "cached, s", "plain, s", "plain / cold", "plain / cached"]
    heads += ["cold, MB", "plain, MB", "plain / cold", "apart", "cold's error", "plain's error"]
    lines = []
    for row in rows:
        walls = {side: field_of(runs, "wall_s") for side, runs in row.runs.items()}
        sizes = {side: held(runs) for side, runs in row.runs.items()}
        warm = "cached" in walls
        lines.append(
            [
                label(row),
                as_text(spread(walls["cold"])),
                as_text(spread(walls["cached"])) if warm else NONE,
                as_text(spread(walls["plain"])),
                as_text(ratio(walls["plain"], walls["cold"])),
                as_text(ratio(walls["plain"], walls["cached"])) if warm else NONE,
                as_text(spread(sizes["cold"]), 0),
                as_text(spread(sizes["plain"]), 0),
                as_text(ratio(sizes["plain"], sizes["cold"])),
                f"{row.apart:.0e}",
                *(f"{row.errors[side]:.0e}" if side in row.errors else NONE for side in ("cold", "plain")),
            ]
        )
    return as_table(heads, lines)


def against_copying(row: Row) -> str:
    """Say how many times the time of reading and writing a merge takes."""
    ours, copy, load = (field_of(row.runs[side], "wall_s") for side in ("cold", "copy", "load"))
    bytes_, tensors = as_text(spread(copy), 2), as_text(spread(load), 2)
    return (
        f"Reading the inputs and writing the output takes {bytes_} s, loading and saving them as tensors {tensors} s: "
        f"{label(row)} takes {as_text(ratio(ours, copy), 2)} and {as_text(ratio(ours, load), 2)} times as long."
    )


def growths(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Pair the rows of methods that were measured on two sizes, the smaller first."""
    by_method = {row.method: [other for other in rows if other.method == row.method] for row in rows}
    pairs = [sorted(found, key=lambda row: row.blocks) for found in by_method.values()]
    return [(small, large) for small, large in (pair for pair in pairs if len(pair) == 2)]


def growth(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Write the memory of the smaller and the larger models' merges, and the plain program's on the larger ones."""
    heads = ["method", "blocks", "MB", "blocks", "MB", "ratio", "plain, MB", "plain / ours"]
    lines = []
    for pair in pairs:
        few, many = (held(row.runs["cold"]) for row in pair)
        sizes = [str(pair[0].blocks), as_text(spread(few), 0), str(pair[1].blocks), as_text(spread(many), 0)]
        lines.append([f"`{pair[0].method}`", *sizes, as_text(ratio(many, few), 2), *plains(pair[1], many)])
    return as_table(heads, lines)


def plains(row: Row, ours: Sequence[float]) -> list[str]:
    """Write what the plain program held: all told, or at least, where only its start was seen."""
    if not (runs := row.runs.get("plain") or row.runs.get("start")):
        return [NONE, NONE]
    least = "" if "plain" in row.runs else "≥ "
    return [f"{least}{as_text(spread(held(runs)), 0)}", f"{least}{as_text(ratio(held(runs), ours))}"]


def held(runs: Sequence[Measured]) -> list[float]:
    """List the most that each run held itself, in MB."""
    return [size / MB for size in field_of(runs, "peak_anonymous_bytes")]


def costs(rows: Sequence[Row]) -> str:
    """Write what each merge takes, and what it stores for each task."""
    heads = ["method", "wall, s", "CPU, s", "peak memory, MB", "of it anonymous", "AMR, %"]
    lines = []
    for row in rows:
        times = [as_text(spread(field_of(row.runs["cold"], name))) for name in ("wall_s", "cpu_s")]
        sizes = [[b / MB for b in field_of(row.runs["cold"], f"peak_{name}_bytes")] for name in ("rss", "anonymous")]
        lines.append([label(row), *times, *(as_text(spread(size), 0) for size in sizes), f"{100 * row.amr:.2f}"])
    return as_table(heads, lines)


def label(row: Job | Row) -> str:
    """Name a method, and the number of blocks where it is not ViT-B/32's."""
    return f"`{row.method}`" + ("" if row.blocks == BLOCKS else f", {row.blocks} of {BLOCKS} blocks")


if __name__ == "__main__":
    main()
