"""Statistics of the tasks' own models on validation data."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser.config.inputs.base import Input, name_mistakes, other_source, without_classes
from merganser.config.params import Entry, Params
from merganser.errors import did_you_mean
from merganser.merging.method import Method
from merganser.plugins import STATISTICS, constants, module_names, places_of


class StatisticsInput(Input):
    """Gram matrices and Fisher information, with the deltas."""

    name = "statistics"
    validation = True
    every_task = True
    by_task = True

    def fits(self, about: Mapping[str, Any], method: Method, of: str | None = None) -> bool:
        """Tell whether a method needs no other kind."""
        kind = about.get("kind")
        return set(method.statistics) <= ({kind, f"base_{kind}"} if about.get("base") is True else {kind})

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check the kinds, whether they can be measured of the base, and whether tasks have the classes they need."""
        known = module_names(places_of(STATISTICS))
        for name, statistic in params.statistics.items():
            kind = constants(STATISTICS, statistic.kind)
            if statistic.kind not in known:
                listed = f"known: {', '.join(known)}{did_you_mean(statistic.kind, known)}"
                yield f"statistics.{name}.kind: {statistic.kind!r} is not a kind of statistic; {listed}"
                continue
            if kind.get("NEEDS_CLASSES"):
                yield from without_classes(params, f"whose probabilities statistics.{name} needs", f"statistics.{name}")
            if statistic.base and not kind.get("OF_BASE"):
                of_base = " or ".join(each for each in known if constants(STATISTICS, each).get("OF_BASE"))
                yield f"statistics.{name}.base: only kind: {of_base} measures the base model too; leave it out"

    def source_mistakes(self, params: Params, entry: Entry, method: Method) -> Iterator[str]:
        """Check that a method that reads statistics reads those that it needs, and no other method any."""
        if method.reads != self.name:
            yield other_source(entry, method)
            return
        if not {each.kind for each in params.statistics.values()} <= {*module_names(places_of(STATISTICS))}:
            return  # said of the kind: whether one fits is not known
        fitting = [name for name, each in params.statistics.items() if self.fits(each.model_dump(), method)]
        base = ", base: true" if any(what.startswith("base_") for what in method.statistics) else ""
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
