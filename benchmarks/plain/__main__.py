"""Merge checkpoints by a plain program.

`python -m benchmarks.plain METHOD --base BASE --model NAME=PATH ... --out DIR`
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.plain import arithmetic, compressed, joint, spectral
from benchmarks.plain.states import State, load, save, task_vectors, write

MERGES: dict[str, Callable[[list[State]], State]] = {
    "task_arithmetic": arithmetic.task_arithmetic,
    "ties": arithmetic.ties,
    "tsv_m": spectral.tsv_m,
    "iso_c": spectral.iso_c,
    "iso_cts": spectral.iso_cts,
    "sftm": spectral.sftm,
    "drm_h": joint.drm_h,
    "knots": joint.knots,
}
PARTS: dict[str, Callable[[list[State]], list[State]]] = {"dts_t": compressed.dts_t}
METHODS = (*MERGES, *PARTS)


def main() -> None:
    """Load everything, merge, write a whole model (and a file of parts a task, for a method that keeps some)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="merge these parameters; the rest is the base's")
    options = parser.parse_args()
    models = {name: Path(path) for name, _, path in (given.partition("=") for given in options.model)}
    options.out.mkdir(parents=True)
    with torch.inference_mode():
        base = load(options.base)
        vectors = task_vectors(base, models, options.only)
        if options.method in PARTS:
            for task, stored in zip(models, PARTS[options.method](vectors), strict=True):
                save(options.out / f"{task}.safetensors", stored)
            write(options.out / "model.safetensors", base, {})
        else:
            write(options.out / "model.safetensors", base, MERGES[options.method](vectors))


if __name__ == "__main__":
    main()
