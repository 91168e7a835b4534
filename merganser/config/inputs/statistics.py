"""Statistics of the tasks' own models on validation data."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser.config.inputs.base import Input, name_mistakes, other_source, without_classes
from merganser.config.params import Entry, Params
from merganser.merging.method import Method


class StatisticsInput(Input):
    """Gram matrices and Fisher information, with the deltas."""

    name = "statistics"
    validation = True
    every_task = True
    by_task = True

    def fits(self, about: Mapping[str, Any], method: Method, of: str | None = None) -> bool:
        """Tell whether a method needs no other kind."""
        base = ["base_fisher"] if about.get("base") is True else []
        return set(method.statistics) <= {about.get("kind"), *base}

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check that only Fisher information is asked of the base, and only of tasks with classes."""
        for name, statistic in params.statistics.items():
            if statistic.kind == "fisher":
                yield from without_classes(params, f"whose probabilities statistics.{name} needs", f"statistics.{name}")
            elif statistic.base:
                yield f"statistics.{name}.base: only kind: fisher measures the base model too; leave it out"

    def source_mistakes(self, params: Params, entry: Entry, method: Method) -> Iterator[str]:
        """Check that a method that reads statistics reads those that it needs, and no other method any."""
        if method.reads != self.name:
            yield other_source(entry, method)
            return
        fitting = [name for name, each in params.statistics.items() if self.fits(each.model_dump(), method)]
        base = ", base: true" if "base_fisher" in method.statistics else ""
        declare = f"declare statistics: {{NAME: {{kind: {method.statistics[0]}, examples: 256{base}}}}}, and read it"
        remedy = f"read statistics/{fitting[0]}" if fitting else declare
        name = entry.named(self.name)
        if name is None:
            yield f"{method.name} reads statistics/NAME, got {entry.reads!r}; {remedy}"
        elif name not in params.statistics:
            yield from name_mistakes(self.name, params.statistics, name, entry.reads)
        elif name not in fitting:
            needed, found = " and ".join(method.statistics), " and ".join(params.statistics[name].measured)
            yield f"{method.name} needs {needed}, statistics.{name} is {found}; {remedy}"
