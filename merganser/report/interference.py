"""Singular task interference of each layer, before and after TSV-M makes the tasks' bases orthogonal."""

from collections.abc import Iterator
from typing import NamedTuple

from merganser.factors import FactorSource
from merganser.layers import LayerFactors
from merganser.linalg.svd import leading
from merganser.measures.interference import task_interference, task_interference_after_tsv_m


class LayerInterference(NamedTuple):
    """One layer's STI with each task's leading rank // T singular components."""

    layer: str
    kept: int  # components of each task
    before: float
    after: float


def measure_interference(source: FactorSource) -> Iterator[LayerInterference]:
    """Measure every matrix that has at least one component for each task."""
    for layer in source:
        if isinstance(layer, LayerFactors) and (kept := min(layer.shape) // len(layer.tasks)):
            kept = min(kept, layer.factors[0].u.shape[1])  # no more than decompose.rank_fraction stored
            factors = [leading(of_task, kept) for of_task in layer.factors]
            before, after = task_interference(factors), task_interference_after_tsv_m(factors)
            yield LayerInterference(layer.name, kept, before, after)


def short_names(names: list[str]) -> list[str]:
    """Drop the leading words that all parameters share, and the word `weight` at the end."""
    words = [name.split(".") for name in names]
    shared = 0
    while all(len(w) > shared + 1 for w in words) and len({w[shared] for w in words}) == 1:
        shared += 1
    return [".".join(w[shared:]).removesuffix(".weight").replace("transformer.resblocks", "block") for w in words]
