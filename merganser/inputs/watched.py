"""Report passes over layers as progress, or not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

from merganser.inputs.layers import Layer, LayerSource, R, WrappedSource
from merganser.progress import Progress, watched


@dataclass(frozen=True)
class WatchedLayers(WrappedSource):
    """A source that reports the progress of each pass over its layers, in entries read."""

    what: str
    progress: Progress

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        return self._watched(self.source.map(function))

    def spread(self, function: Callable[[str], R]) -> Iterator[R]:
        return self._watched(self.source.spread(function))

    def _watched(self, results: Iterator[R]) -> Iterator[R]:
        sizes = [prod(self.shapes[name]) for name in self.names]
        left = iter(sizes)
        return watched(results, lambda _: next(left), sum(sizes), self.what, self.progress)


def unreported(source: LayerSource) -> LayerSource:
    """Return a source whose passes are not reported as progress."""
    if isinstance(source, WatchedLayers):
        return unreported(source.source)
    return replace(source, source=unreported(source.source)) if isinstance(source, WrappedSource) else source
