"""Decompose once, merge by many methods; keep all of it once on disk: `python -m benchmarks.decompose_once`.

The stages are those of the pipeline, each a process of its own, on models of ViT-B/32's width. The disk is measured
on a smaller comparison that `merganser run` carries out with DVC.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import (
    MB,
    RESULTS,
    Measured,
    Run,
    as_table,
    described,
    field_of,
    machine,
    measure,
    write_results,
)
from benchmarks.projects import called, environment, make_repository, prepare, write_project
from merganser.hashes import sha256_of

WIDTH = 768  # ViT-B/32's
METHODS = ("tsv_m", "star", "svd", "tsv_c", "byom_lora", "dts_t")  # those that read factors, and no embeddings
DISK_BLOCKS, DISK_TASKS, DISK_METHODS = 1, 2, ("average", "ties", "iso_c", "drm_h", *METHODS)
OUTPUTS = ("data", "report", "metrics.json")


def main() -> None:
    """Measure time and disk; print both as Markdown, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=8, help="fine-tuned models (8)")
    parser.add_argument("--blocks", type=int, default=2, help="of the image tower (2; ViT-B/32 has 12)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of a stage (the CPUs' number)")
    options = parser.parse_args()
    print(described(machine()), flush=True)
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        stages = measure_stages(Path(folder), options.tasks, options.blocks, options.threads)
    print(f"\n{options.tasks} tasks, {options.blocks} blocks of width {WIDTH}, {options.threads} threads\n")
    print(stage_table(stages, options.tasks), "\n", sharing(stages), sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as folder:
        disk = measure_disk(Path(folder))
    print(disk_text(disk))
    write_results(RESULTS / "decompose_once.json", {"options": vars(options), "stages": stages, "disk": disk})


def measure_stages(folder: Path, tasks: int, blocks: int, threads: int) -> dict[str, list[Measured]]:
    """Measure the decomposition of each task, one of them again with all of it there, and each method's merge."""
    names = write_project(folder, WIDTH, blocks, tasks, METHODS)
    prepare(folder, names, until="extract")

    def stage(*words: str) -> Measured:
        return measure(Run([sys.executable, "-m", *words], folder, environment(threads)))

    found = {"decompose": [stage("merganser.tasks.decompose", name) for name in names]}
    found["decompose, again"] = [stage("merganser.tasks.decompose", names[0])]
    return found | {name: [stage("merganser.tasks.merge", name)] for name in METHODS}


def added(measured: Sequence[Measured], name: str = "wall_s") -> float:
    """Add up what processes that ran one after another took."""
    return sum(field_of(measured, name))


def stage_table(stages: Mapping[str, Sequence[Measured]], tasks: int) -> str:
    """Write each stage's time, added up over its processes, and the most that one of them held."""
    rows = [
        (
            f"merge by {name}" if name in METHODS else f"{name}, {len(runs)} of {tasks} tasks",
            f"{added(runs):.1f}",
            f"{added(runs, 'cpu_s'):.1f}",
            f"{max(each.peak_anonymous_bytes for each in runs) / MB:.0f}",
        )
        for name, runs in stages.items()
    ]
    return as_table(["stage", "wall, s", "CPU, s", "anonymous, MB"], rows)


def sharing(stages: Mapping[str, Sequence[Measured]]) -> str:
    """Compare one method, all on one decomposition, and all with one each: in wall time, and in CPU time."""
    rows = []
    for name, said in (("wall_s", "wall"), ("cpu_s", "CPU")):
        once = added(stages["decompose"], name)
        merges = [added(stages[method], name) for method in METHODS]
        first, shared, apart = once + merges[0], once + sum(merges), len(METHODS) * once + sum(merges)
        further = sum(merges[1:]) / (len(merges) - 1)
        seconds = [f"{value:.1f}" for value in (first, shared, further, apart)]
        rows.append((said, *seconds, f"{shared / first:.2f}", f"{apart / shared:.1f}"))
    every = f"{len(METHODS)} methods"
    heads = [
        "s",
        METHODS[0],
        every,
        "a further one",
        f"{every}, a decomposition each",
        "second / first",
        "fourth / second",
    ]
    return as_table(heads, rows)


def measure_disk(folder: Path) -> dict[str, int]:
    """Run a whole comparison under DVC; return the bytes of its outputs, and what the disk gave for them.

    `contents`: of the outputs, each content once. `linked`: with hard links, as the repository is set up. `copied`: the
    same with copies, as on a file system that can do no better.
    """
    write_project(folder, WIDTH, DISK_BLOCKS, DISK_TASKS, DISK_METHODS)
    make_repository(folder)
    before = allocated(folder)
    called(folder, [sys.executable, "-m", "merganser.flows", "run", "--workers", "2"])
    outputs, contents = sizes(folder)
    found = {"outputs": outputs, "contents": contents, "linked": allocated(folder) - before}
    dvc = [sys.executable, "-m", "dvc"]
    called(folder, [*dvc, "config", "cache.type", "copy"])
    called(folder, [*dvc, "checkout", "-q", "--relink"])
    return found | {"copied": allocated(folder) - before}


def sizes(folder: Path) -> tuple[int, int]:
    """Return the bytes of all the files that the stages wrote, and of those of different content."""
    named = [folder / name for name in OUTPUTS]
    files = [path for each in named for path in ([each] if each.is_file() else each.rglob("*")) if path.is_file()]
    contents = {sha256_of(path): path.stat().st_size for path in files}
    return sum(path.stat().st_size for path in files), sum(contents.values())


def allocated(folder: Path) -> int:
    """Return the bytes that the disk gave for a folder: a file with several names counts once."""
    blocks = {status.st_ino: status.st_blocks for status in (path.lstat() for path in folder.rglob("*"))}
    return 512 * sum(blocks.values())


def disk_text(disk: Mapping[str, int]) -> str:
    """Say what a comparison takes on disk as a multiple of what it wrote."""
    linked, copied, different = (disk[name] / disk["outputs"] for name in ("linked", "copied", "contents"))
    size = f"{disk['outputs'] / MB:.0f} MB, {different:.2f} of it different"
    wrote = f"A comparison of {len(DISK_METHODS)} methods wrote {size}"
    with_links = f"{linked:.3f} times that on disk, DVC's cache and the stores of Prefect and MLflow included"
    return f"{wrote}. It takes {with_links}; with copies instead of links {copied:.3f} times."


if __name__ == "__main__":
    main()
