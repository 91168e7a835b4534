"""What is computed or trained beside a model: embeddings of the tasks' classes, routers, and Surgery's bottlenecks."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser.config.inputs.base import OfAnother, without_classes
from merganser.config.params import Params
from merganser.merging.method import Method

START = "expected differences/NAME, whose start is the merged model"


class EmbeddingsInput(OfAnother):
    """Text embeddings of the tasks' class names, which methods that compare tasks by meaning read."""

    name = "embeddings"
    every_task = True
    not_of_subsets = ": {method} needs the tasks' text embeddings, which this study does not read; take it out"
    needed, unused = "needs the text embeddings of the tasks' class names", "uses no text embeddings"
    expected, others = "expected deltas, svd or differences/NAME", ("deltas", "svd")

    def fits(self, about: Mapping[str, Any], method: Method, of: str | None = None) -> bool:
        """Tell whether they are of what is asked for."""
        return of in (None, about.get("of"))

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check that all tasks have classes, whose names are embedded."""
        yield from super().mistakes(params)
        for name in params.embeddings:
            yield from without_classes(params, f"whose names embeddings.{name} embeds", f"embeddings.{name}")


class RoutersInput(OfAnother):
    """Which task an example is of, by a model's features."""

    name = "routers"
    validation = every_task = True
    not_of_subsets = ": {method} needs routers, trained for a merge of all tasks; take it out"
    needed, unused = "reads routers/NAME", "takes nothing of routers"
    expected, others = f"{START}, or deltas, whose start is the base", ("deltas",)


class SurgeryInput(OfAnother):
    """Bottlenecks that bring a merged model's features near those of each task's own model."""

    name = "surgery"
    validation = every_task = True
    example = "of: differences/NAME"
    not_of_subsets = ": {method} needs surgery, trained for a merge of all tasks; take it out"
    needed, unused = "reads surgery/NAME", "takes nothing of surgery"
    expected = START

    def applied_by(self, one: Any) -> str | None:
        """Return the method of the section's name."""
        return self.name
