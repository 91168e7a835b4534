"""Check the searches of a `params.yaml` against the methods they search, and the entries that take what they chose."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser import registry
from merganser.config.params import Entry, Params, Search
from merganser.errors import did_you_mean
from merganser.studies.candidates import default_grid, grid


def search_mistakes(params: Params) -> Iterator[str]:
    """List the mistakes of all searches, each with its place; what a search is of is checked as an entry's `reads`."""
    for name, search in params.searches.items():
        yield from _value_mistakes(params, f"searches.{name}", search)


def reading_mistakes(params: Params, entry: Entry) -> Iterator[str]:
    """Check an entry that takes what a search chose: the same method, and no parameters of its own."""
    if entry.search is None:
        return
    if entry.search not in params.searches:
        there = f"there are {', '.join(params.searches)}" if params.searches else "there are none"
        near = did_you_mean(entry.search, params.searches)
        yield f"no {entry.search!r} under searches, {there}, got {entry.reads!r}{near}"
    elif (search := params.searches[entry.search]).method != entry.method:
        yield f"{entry.reads} searches parameters of {search.method}, which {entry.method} is not; name {search.method}"
    elif entry.values:
        given = ", ".join(entry.values)
        yield f"{entry.reads} says all parameters, so {given} cannot stand here; write it under searches.{entry.search}"


def _value_mistakes(params: Params, where: str, search: Search) -> Iterator[str]:
    kind, _, difference = search.of.partition("/")
    if search.of not in ("deltas", "svd") and not (kind == "differences" and difference):
        yield f"{where}.of: expected deltas, svd or differences/NAME, got {search.of!r}"
    if search.evolve is not None:
        yield from _evolution_mistakes(params, where, search)
    elif search.method in registry.names() and not over_of(search):
        reason = f"{search.method} has neither scaling nor density, which are searched by default"
        yield f"{where}.over: missing, and {reason}; name parameters with the values to try"
    for name, values in search.over.items():
        if not values:
            yield f"{where}.over.{name}: there are no values; list at least one"
        if name in search.values:
            yield f"{where}.{name}: stands under over too; leave one of them out"


def _evolution_mistakes(params: Params, where: str, search: Search) -> Iterator[str]:
    if search.over:
        yield f"{where}.over: evolve searches coefficients alone; leave one of them out"
    if search.method in registry.names() and not registry.get(search.method).weighted:
        yield f"{where}.evolve: {search.method} takes no coefficients, or none below 0; list values under over"
    if "coefficients" in search.values:
        yield f"{where}.coefficients: evolve searches them; leave one of them out"
    if len(params.tasks) < 2:
        yield f"{where}.evolve: there is one task, and so one coefficient; search scaling under over"


def over_of(search: Search) -> Mapping[str, list[Any]]:
    """Return the values of each parameter that a search tries: its own, or those of scaling and density for all."""
    if search.over:
        return search.over
    known = default_grid(registry.get(search.method).parameters.model_fields)
    return {name: values for name, values in known.items() if name not in search.values}


def candidates_of(search: Search) -> list[dict[str, Any]]:
    """Return the values that a search tries, without those that stay.

    One empty map of an unknown method, and of an evolution, whose values follow from scores.
    """
    return grid(over_of(search)) if search.evolve is None and search.method in registry.names() else [{}]
