"""How far two merges of the same models are from each other."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from benchmarks.plain.__main__ import MERGES
from benchmarks.plain.compressed import restored
from benchmarks.plain.states import load
from merganser.checkpoints.reading import open_checkpoint
from merganser.overlays import OverlayFile, open_overlays

# By each of these methods a layer's merge is its own, and can be had in float64 without the others.
LAYERWISE = ("task_arithmetic", "tsv_m", "iso_c", "iso_cts", "sftm", "drm_h")
# 768 x 3072: no singular values so small that ours leaves their directions out, as it does for square layers.
LAYER = "visual.transformer.resblocks.0.mlp.c_proj.weight"


def far(ours: Path, plain: Path, base: Path) -> float:
    """Return the distance of two merged deltas over the second's norm; of all tasks' own, where a method has those."""
    overlays = open_overlays(ours)
    pairs = _merged(ours, plain, base) if overlays is None else _parts(overlays, plain, base)
    distance = size = 0.0
    for mine, theirs in pairs:
        distance += float((mine.double() - theirs.double()).square().sum())
        size += float(theirs.double().square().sum())
    return (distance / size) ** 0.5


def from_exact(method: str, merged: Path, base: Path, models: Iterable[Path]) -> float:
    """Return how far one layer's merged delta is from the plain program's in float64, by that one's norm.

    The deltas are rounded to float32 first, as both sides have them: an entry pruned for that is nobody's error.
    """
    start = open_checkpoint(base).read(LAYER)
    deltas = [(open_checkpoint(path).read(LAYER) - start).double() for path in models]
    exact = MERGES[method]([{LAYER: delta} for delta in deltas])[LAYER]
    found = open_checkpoint(merged).read(LAYER).double() - start.double()
    return float((found - exact).norm() / exact.norm())


def _merged(ours: Path, plain: Path, base: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Give each parameter's two merged deltas."""
    start, mine, theirs = (open_checkpoint(path) for path in (base, ours, plain))
    for name in start.names:
        weights = start.read(name).double()
        yield mine.read(name).double() - weights, theirs.read(name).double() - weights


def _parts(overlays: OverlayFile, plain: Path, base: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Give each task's two deltas of each parameter that it has a part of."""
    start = open_checkpoint(base)
    for task in overlays.tasks:
        stored = load(plain / f"{task}.safetensors")
        for name in start.names:
            shape = start.spec(name).shape
            delta = overlays.delta(task, name, shape)
            if delta is not None:
                yield delta, restored(stored, name, shape)
            else:
                assert not any(key.startswith(f"{name}.") for key in stored), f"{task}: only the plain one has {name}"
