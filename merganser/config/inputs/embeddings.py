"""Text embeddings of the tasks' class names, beside deltas, factors or difference vectors."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from merganser.config.inputs.base import OfAnother, of_mistakes
from merganser.config.params import Params

if TYPE_CHECKING:
    from merganser.merging.method import Method


class Embeddings(OfAnother):
    """What methods that compare tasks by meaning read."""

    name = "embeddings"
    every_task = True
    not_of_subsets = ": {method} needs the tasks' text embeddings, which this study does not read; take it out"
    needed, unused = "needs the text embeddings of the tasks' class names", "uses no text embeddings"

    def fits(self, about: Mapping[str, Any], method: "Method", of: str | None = None) -> bool:
        """Tell whether they are of what is asked for."""
        return of in (None, about.get("of"))

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check what they are read with: what methods read, or difference vectors that there are."""
        for name, embedding in params.embeddings.items():
            expected = "expected deltas, svd or differences/NAME"
            for mistake in of_mistakes(params, embedding.of, expected, "deltas", "svd"):
                yield f"embeddings.{name}.of: {mistake}"
