"""Keep computed layers in memory if they fit: a learner needs all of them in each step.

Layers that are only read stay in the system's page cache, so keeping them as well would not save time.
"""

from dataclasses import dataclass, field

from merganser.inputs.layers import Layer, LayerSource, WrappedSource
from merganser.terminal.machine_limits import available_memory, usable_cpus
from merganser.workers import SHARE, threads_wanted

BYTES = 8  # of a delta's entry, at most: factors of the whole rank take twice as much as float32 deltas


@dataclass(frozen=True)
class KeptLayers(WrappedSource):
    """A source that keeps each layer in memory after its first use; callers must not change a layer."""

    _kept: dict[str, Layer] = field(default_factory=dict, init=False)

    def layer(self, name: str) -> Layer:
        if name not in self._kept:
            self._kept[name] = self.source.layer(name)
        return self._kept[name]


def kept_in_memory(source: LayerSource) -> LayerSource:
    """Keep a source's layers in memory if they fit into a share of the free memory; else return the source.

    This expects other processes on the remaining CPUs, each of which needs as much.
    """
    needed = BYTES * source.entries * len(source.tasks)
    processes = max(1, usable_cpus() // threads_wanted())
    return KeptLayers(source) if needed * processes <= SHARE * available_memory() else source
