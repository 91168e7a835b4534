"""What is trained beside a merged model: routers, and Surgery's bottlenecks."""

from collections.abc import Iterator
from typing import Any

from merganser.config.inputs.base import OfAnother, of_mistakes
from merganser.config.params import Params


class _Trained(OfAnother):
    """Something that is trained by the features of the model that difference vectors start from."""

    validation = True
    every_task = True
    of_deltas = False  # whether it may be of deltas, which start from the base

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check what each is of: difference vectors that there are, or deltas."""
        expected = "expected differences/NAME, whose start is the merged model"
        expected += ", or deltas, whose start is the base" if self.of_deltas else ""
        others = ["deltas"] if self.of_deltas else []
        for name, one in self.declared(params).items():
            for mistake in of_mistakes(params, one.of, expected, *others):
                yield f"{self.name}.{name}.of: {mistake}"


class Routers(_Trained):
    """Which task an example is of, by a model's features."""

    name = "routers"
    not_of_subsets = ": {method} needs routers, trained for a merge of all tasks; take it out"
    needed, unused = "reads routers/NAME", "takes nothing of routers"
    of_deltas = True


class Surgery(_Trained):
    """Bottlenecks that bring a merged model's features near those of each task's own model."""

    name = "surgery"
    example = "of: differences/NAME"
    not_of_subsets = ": {method} needs surgery, trained for a merge of all tasks; take it out"
    needed, unused = "reads surgery/NAME", "takes nothing of surgery"

    def applied_by(self, one: Any) -> str | None:
        """Return the method of the section's name."""
        return self.name
