"""Check the section statistics of a `params.yaml`, and the entries that read it."""

from collections.abc import Iterator

from merganser.config.params import Entry, Params
from merganser.errors import did_you_mean
from merganser.merging.method import Method


def statistics_mistakes(params: Params) -> Iterator[str]:
    """Check that only Fisher information is asked of the base."""
    for name, statistic in params.statistics.items():
        if statistic.base and statistic.kind != "fisher":
            yield f"statistics.{name}.base: only kind: fisher measures the base model too; leave it out"


def statistic_reading_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[str]:
    """Check that a method that reads statistics reads those that it needs."""
    fitting = [name for name, each in params.statistics.items() if set(method.statistics) <= set(each.measured)]
    base = ", base: true" if "base_fisher" in method.statistics else ""
    declare = f"declare statistics: {{NAME: {{kind: {method.statistics[0]}, examples: 256{base}}}}}, and read it"
    remedy = f"read statistics/{fitting[0]}" if fitting else declare
    if entry.statistic is None:
        yield f"{method.name} reads statistics/NAME, got {entry.reads!r}; {remedy}"
    elif entry.statistic not in params.statistics:
        there = f"there are {', '.join(params.statistics)}" if params.statistics else "there are none"
        near = did_you_mean(entry.statistic, params.statistics)
        yield f"no {entry.statistic!r} under statistics, {there}, got {entry.reads!r}{near}"
    elif entry.statistic not in fitting:
        needed, found = " and ".join(method.statistics), " and ".join(params.statistics[entry.statistic].measured)
        yield f"{method.name} needs {needed}, statistics.{entry.statistic} is {found}; {remedy}"
