"""Searches for a method's parameters on the tasks' validation data, and the entries that take what they chose."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser.config.inputs.base import Input, difference_in, known_method, name_mistakes
from merganser.config.params import Entry, Params, Search
from merganser.merging.method import Method
from merganser.studies.candidates import default_grid, value_combinations


class SearchesInput(Input):
    """A method's parameters that were chosen on validation data, beside what the method reads."""

    name = "searches"
    validation = True
    says_values = True
    not_of_subsets = ".reads: {reads} chose values for all tasks, not a subset; write them, or take the entry out"

    def of_by_default(self, about: Mapping[str, Any]) -> str | None:
        """Return what the method reads."""
        method = known_method(about.get("method"))
        return None if method is None else method.reads

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check the values that are tried; what a search is of is checked as an entry's `reads`."""
        for name, search in params.searches.items():
            yield from _value_mistakes(params, f"searches.{name}", search)

    def entries(self, params: Params) -> Iterator[tuple[str, Entry]]:
        """List each candidate as the entry that it may become."""
        for name, search in params.searches.items():
            for candidate in search_candidates(search):
                yield f"searches.{name}", search.entry(candidate)

    def reading_mistakes(self, params: Params, entry: Entry, method: Method) -> Iterator[str]:
        """Check an entry that takes what a search chose: the same method, and no parameters of its own."""
        name = entry.named(self.name)
        if name is None:
            return
        if name not in params.searches:
            yield from name_mistakes(self.name, params.searches, name, entry.reads)
        elif (searched := params.searches[name].method) != entry.method:
            yield f"{entry.reads} searches parameters of {searched}, which {entry.method} is not; name {searched}"
        elif entry.values:
            given = ", ".join(entry.values)
            yield f"{entry.reads} sets all parameters, so {given} is not allowed here; write it under searches.{name}"


def _value_mistakes(params: Params, where: str, search: Search) -> Iterator[str]:
    if search.of not in ("deltas", "svd") and difference_in(search.of) is None:
        yield f"{where}.of: expected deltas, svd or differences/NAME, got {search.of!r}"
    if search.evolve is not None:
        yield from _evolution_mistakes(params, where, search)
    elif search.over and search.grid == "paper":
        yield f"{where}.over: grid: paper names the values already; leave one of them out"
    elif search.grid == "paper" and (method := known_method(search.method)) and not method.searched:
        yield f"{where}.grid: no grid of {search.method}'s paper is known; leave it out, or write values under over"
    elif known_method(search.method) and not searched_values(search):
        reason = f"{search.method} has neither scaling nor density, which are searched by default"
        yield f"{where}.over: missing, and {reason}; name parameters with the values to try"
    for name, values in search.over.items():
        if not values:
            yield f"{where}.over.{name}: there are no values; list at least one"
        if name in search.values:
            yield f"{where}.{name}: is under over too; leave one of them out"


def _evolution_mistakes(params: Params, where: str, search: Search) -> Iterator[str]:
    if search.over or search.grid == "paper":
        key = "over" if search.over else "grid"
        yield f"{where}.{key}: evolve searches coefficients alone; leave one of them out"
    if (method := known_method(search.method)) and not method.weighted:
        yield f"{where}.evolve: {search.method} takes no coefficients, or none below 0; list values under over"
    if "coefficients" in search.values:
        yield f"{where}.coefficients: evolve searches them; leave one of them out"
    if len(params.tasks) < 2:
        yield f"{where}.evolve: there is one task, and so one coefficient; search scaling under over"


def searched_values(search: Search) -> Mapping[str, list[Any]]:
    """Return the values of each parameter that a search tries: its own, its paper's, or those that are tried of all."""
    method = known_method(search.method)
    if search.over or method is None:
        return search.over
    paper = method.searched if search.grid == "paper" else None
    known = paper or default_grid(method.parameters.model_fields)
    return {name: list(values) for name, values in known.items() if name not in search.values}


def own_of(search: Search) -> list[str]:
    """Name the parameters of a paper's grid of which each task takes the value that is best for itself."""
    method = known_method(search.method)
    if method is None or search.tried != "paper":
        return []
    return [name for name in method.own if name in searched_values(search)]


def search_candidates(search: Search) -> list[dict[str, Any]]:
    """Return the values that a search tries, without those that stay.

    One empty map of an unknown method, and of an evolution, whose values follow from scores.
    """
    return (
        value_combinations(searched_values(search)) if search.evolve is None and known_method(search.method) else [{}]
    )


def candidate_count(search: Search) -> int:
    """Return how many candidates a search tries."""
    if search.evolve is None:
        return len(search_candidates(search)) + bool(own_of(search))
    return 1 + search.evolve.generations * search.evolve.population
