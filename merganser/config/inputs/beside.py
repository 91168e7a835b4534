"""What is trained beside a merged model: routers, and Surgery's bottlenecks."""

from collections.abc import Iterator
from typing import Any

from merganser.config.inputs.base import OfAnother, difference_in
from merganser.config.params import Beside, Params
from merganser.errors import did_you_mean


class _Trained(OfAnother):
    """Something that is trained by the features of the model that difference vectors start from."""

    validation = True
    every_task = True
    of_deltas = False  # whether it may be of deltas, which start from the base

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check what each is of: difference vectors that there are, or deltas."""
        for name, one in self.declared(params).items():
            if not (self.of_deltas and one.of == "deltas"):
                yield from (f"{self.name}.{name}.of: {mistake}" for mistake in self._of_mistakes(params, one))

    def _of_mistakes(self, params: Params, one: Beside) -> Iterator[str]:
        name = difference_in(one.of)
        if name is None:
            base = ", or deltas, whose start is the base" if self.of_deltas else ""
            yield f"expected differences/NAME, whose start is the merged model{base}, got {one.of!r}"
        elif name not in params.differences:
            yield f"no {name!r} under differences, got {one.of!r}{did_you_mean(name, params.differences)}"


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
