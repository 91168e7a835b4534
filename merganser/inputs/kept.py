"""Layers that stay in memory once they are computed, where they fit: a learner takes all of them in each step.

Layers that are read alone need not: the system's page cache has them, and a step takes as long either way.
"""

import os
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped]

from merganser.inputs.layers import Layer, LayerSource, WrappedSource
from merganser.workers import SHARE, threads_wanted

BYTES = 8  # of a delta's entry, at most: factors of the whole rank take twice as much as float32 deltas


@dataclass(frozen=True)
class KeptLayers(WrappedSource):
    """A source whose layers stay in memory once they are read; nobody may change them."""

    _kept: dict[str, Layer] = field(default_factory=dict, init=False)

    def layer(self, name: str) -> Layer:
        """Return one parameter of all tasks, read when it is first asked for."""
        if name not in self._kept:
            self._kept[name] = self.source.layer(name)
        return self._kept[name]


def kept_in_memory(source: LayerSource) -> LayerSource:
    """Let a source's layers stay in memory, where all of them fit into a share of what is free; else return the source.

    Other processes are expected on the CPUs that this one has no threads for, and to take as much.
    """
    needed = BYTES * source.entries * len(source.tasks)
    processes = max(1, (os.cpu_count() or 1) // threads_wanted())
    return KeptLayers(source) if needed * processes <= SHARE * psutil.virtual_memory().available else source
