"""Inputs that are computed, learned or searched with the tasks' data, or with the names of their classes."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from merganser.config.inputs.base import (
    Input,
    OfAnother,
    difference_in,
    known_method,
    name_mistakes,
    of_mistakes,
    other_source,
    without_classes,
)
from merganser.config.mistakes import Mistake, mistakes_in
from merganser.config.params import Params
from merganser.config.sections import Entry, LearnedEntry, Search
from merganser.config.text import KeyPath
from merganser.errors import InputError, did_you_mean
from merganser.plugins import STATISTICS, constants, module_names, places_of
from merganser.registry import Described
from merganser.studies.candidates import default_grid, value_combinations

if TYPE_CHECKING:
    from merganser.merging.method import Method


START = "expected differences/NAME, which start from the merged model"


class EmbeddingsInput(OfAnother):
    """Text embeddings of the tasks' class names, which methods that compare tasks by meaning read."""

    name = "embeddings"
    every_task = True
    not_of_subsets = Mistake(
        (), "{method} needs the tasks' text embeddings, which this study does not read; take it out"
    )
    needed, unused = "needs the text embeddings of the tasks' class names", "uses no text embeddings"
    expected, others = "expected deltas, svd or differences/NAME", ("deltas", "svd")

    def fits(self, about: Mapping[str, Any], method: Described, of: str | None = None) -> bool:
        """Tell whether the embeddings are `of` the wanted input."""
        return of in (None, about.get("of"))

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """Check that all tasks have classes, whose names are embedded."""
        yield from super().mistakes(params)
        for name in params.embeddings:
            yield from without_classes(params, f"but embeddings.{name} embeds class names", f"embeddings.{name}")


class RoutersInput(OfAnother):
    """Routers, which guess an example's task from a model's features."""

    name = "routers"
    validation = every_task = True
    not_of_subsets = Mistake((), "{method} needs routers, trained for a merge of all tasks; take it out")
    needed, unused = "reads routers/NAME", "takes nothing of routers"
    expected, others = f"{START}, or deltas, which start from the base", ("deltas",)


class SurgeryInput(OfAnother):
    """Bottlenecks that move a merged model's features towards those of each task's own model."""

    name = "surgery"
    validation = every_task = True
    example = "of: differences/NAME"
    not_of_subsets = Mistake((), "{method} needs surgery, trained for a merge of all tasks; take it out")
    needed, unused = "reads surgery/NAME", "takes nothing of surgery"
    expected = START

    def applied_by(self, one: Any) -> str | None:
        """Return the method with the section's name."""
        return self.name


class LearnedValuesInput(OfAnother):
    """Learned values, applied by the method with their learner's name."""

    name = "learned"
    validation = True
    every_task = True
    not_of_subsets = Mistake(("reads",), "{reads} was learned of all tasks, not a subset's; take the entry out")
    example = "learner: {method}, of: {reads}"
    needed, unused = "applies learned values", "applies no learned values"

    def fits(self, about: Mapping[str, Any], method: Described, of: str | None = None) -> bool:
        """Tell whether the method's own learner finds the values."""
        return about.get("learner") == method.name

    def of_by_default(self, about: Mapping[str, Any]) -> str | None:
        """Return the learner's input, unless it must be a merge."""
        method = known_method(about.get("learner"))
        return None if method is None or (method.learner and method.learner.of_merge) else method.reads

    def applied_by(self, one: Any) -> str | None:
        """Return the method with the learner's name."""
        return str(one.learner)

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """Check each against its learner, and that all tasks have the classes that its loss needs."""
        for name, learned in params.learned.items():
            yield from _learner_mistakes(params, ("learned", name), learned)
        if any(_takes_steps(learned) for learned in params.learned.values()):
            yield from without_classes(params, "but learned.* need class probabilities", "learned")

    def reading_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check also that the values are those of the method's own learner."""
        yield from super().reading_mistakes(params, entry, method)
        learned = params.learned.get(entry.named(self.name) or "")
        if learned is not None and method.learner and known_method(learned.learner) and learned.learner != method.name:
            reason = f"which the method {method.name} does not apply"
            yield Mistake((), f"{entry.reads} is learned by {learned.learner}, {reason}; name {learned.learner}")


def _takes_steps(learned: LearnedEntry) -> bool:
    """Tell whether the learner minimises a loss on class probabilities."""
    method = known_method(learned.learner)
    learner = method.learner if method else None
    return learner is None or learner.takes_steps


def _learner_mistakes(params: Params, where: KeyPath, learned: LearnedEntry) -> Iterator[Mistake]:
    from merganser import registry  # imports torch, as the next does
    from merganser.models import families_with, has_ability
    from merganser.models.linear_maps import WithBlocks

    try:
        learner, reads = registry.get_learner(learned.learner), registry.get(learned.learner).reads
    except InputError as error:
        yield Mistake((*where, "learner"), str(error))
        return
    if learner.routers and not has_ability(params.base.family, WithBlocks):
        reason = f"{learned.learner} mixes the MLPs of blocks, which {params.base.family} does not name"
        yield Mistake((*where, "learner"), f"{reason}; the families that do are {', '.join(families_with(WithBlocks))}")
    expected, others = (
        (START, ()) if learner.of_merge else (f"{learned.learner} reads {reads}, or differences/NAME", (reads,))
    )
    for mistake in of_mistakes(params, learned.of, expected, *others):
        yield mistake.below((*where, "of"))
    yield from mistakes_in(learned.values, learner.settings, where, tuple(LearnedEntry.model_fields))


class StatisticsInput(Input):
    """Gram matrices and Fisher information, with the deltas."""

    name = "statistics"
    validation = True
    every_task = True
    by_task = True

    def fits(self, about: Mapping[str, Any], method: Described, of: str | None = None) -> bool:
        """Tell whether the statistic is the only kind that the method needs."""
        kind = about.get("kind")
        return set(method.statistics) <= ({kind, f"base_{kind}"} if about.get("base") is True else {kind})

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """Check the kinds, whether the base's can be measured, and whether tasks have the classes they need."""
        known = module_names(places_of(STATISTICS))
        for name, statistic in params.statistics.items():
            kind = constants(STATISTICS, statistic.kind)
            if statistic.kind not in known:
                listed = f"known: {', '.join(known)}{did_you_mean(statistic.kind, known)}"
                text = f"{statistic.kind!r} is not a kind of statistic; {listed}"
                yield Mistake((self.name, name, "kind"), text)
                continue
            if kind.get("NEEDS_CLASSES"):
                yield from without_classes(
                    params, f"but statistics.{name} needs class probabilities", f"statistics.{name}"
                )
            if statistic.base and not kind.get("OF_BASE"):
                of_base = " or ".join(each for each in known if constants(STATISTICS, each).get("OF_BASE"))
                text = f"only kind: {of_base} measures the base model too; leave it out"
                yield Mistake((self.name, name, "base"), text, needs=((self.name, name, "kind"),))

    def source_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check that methods with statistics read the kinds that they need, and that no other method reads any."""
        if method.reads != self.name:
            yield other_source(entry, method)
            return
        if not {each.kind for each in params.statistics.values()} <= {*module_names(places_of(STATISTICS))}:
            return  # said of the kind: whether one fits is not known
        fitting = [name for name, each in params.statistics.items() if self.fits(each.model_dump(), method)]
        base = ", base: true" if any(what.startswith("base_") for what in method.statistics) else ""
        declare = f"declare statistics: {{NAME: {{kind: {method.statistics[0]}, examples: 256{base}}}}}, and read it"
        remedy = f"read statistics/{fitting[0]}" if fitting else declare
        name, kinds = entry.named(self.name), tuple((self.name, each, "kind") for each in params.statistics)
        if name is None:
            yield Mistake((), f"{method.name} reads statistics/NAME, got {entry.reads!r}; {remedy}", needs=kinds)
        elif name not in params.statistics:
            yield from name_mistakes(self.name, params.statistics, name, entry.reads)
        elif name not in fitting:
            needed, has = " and ".join(method.statistics), " and ".join(params.statistics[name].measured)
            text = f"{method.name} needs {needed}, statistics.{name} is {has}; {remedy}"
            yield Mistake((), text, needs=((self.name, name),))


class SearchesInput(Input):
    """Parameters of a method chosen on validation data, with the method's own input."""

    name = "searches"
    validation = True
    says_values = True
    not_of_subsets = Mistake(
        ("reads",), "{reads} chose values for all tasks, not a subset; write them, or take the entry out"
    )

    def of_by_default(self, about: Mapping[str, Any]) -> str | None:
        """Return the method's own input."""
        method = known_method(about.get("method"))
        return None if method is None else method.reads

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """Check the candidates' values; a search's `of` is checked like an entry's `reads`."""
        for name, search in params.searches.items():
            yield from _value_mistakes(params, ("searches", name), search)

    def entries(self, params: Params) -> Iterator[tuple[KeyPath, Entry]]:
        """List each candidate as an entry."""
        for name, search in params.searches.items():
            for candidate in search_candidates(search):
                yield ("searches", name), search.entry(candidate)

    def reading_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check an entry that reads a search: it has the same method, and no parameters of its own."""
        name = entry.named(self.name)
        if name is None:
            return
        if name not in params.searches:
            yield from name_mistakes(self.name, params.searches, name, entry.reads)
        elif (searched := params.searches[name].method) != entry.method:
            text = f"{entry.reads} searches parameters of {searched}, which {entry.method} is not; name {searched}"
            yield Mistake((), text, needs=((self.name, name, "method"),))
        elif entry.values:
            given = ", ".join(entry.values)
            reason = f"{entry.reads} sets all parameters, so {given} is not allowed here"
            yield Mistake((), f"{reason}; write it under searches.{name}")


def _value_mistakes(params: Params, where: KeyPath, search: Search) -> Iterator[Mistake]:
    if search.of not in ("deltas", "svd") and difference_in(search.of) is None:
        yield Mistake((*where, "of"), f"expected deltas, svd or differences/NAME, got {search.of!r}")
    if search.evolve is not None:
        yield from _evolution_mistakes(params, where, search)
    elif search.over and search.grid == "paper":
        yield Mistake((*where, "over"), "grid: paper names the values already; leave one of them out")
    elif search.grid == "paper" and (method := known_method(search.method)) and not method.searched:
        yield Mistake(
            (*where, "grid"), f"no grid of {search.method}'s paper is known; leave it out, or write values under over"
        )
    elif known_method(search.method) and not searched_values(search):
        reason = f"{search.method} has neither scaling nor density, which are searched by default"
        yield Mistake((*where, "over"), f"missing, and {reason}; name parameters with the values to try")
    for name, values in search.over.items():
        if not values:
            yield Mistake((*where, "over", name), "there are no values; list at least one")
        if name in search.values:
            yield Mistake((*where, name), "is under over too; leave one of them out")


def _evolution_mistakes(params: Params, where: KeyPath, search: Search) -> Iterator[Mistake]:
    if search.over or search.grid == "paper":
        key = "over" if search.over else "grid"
        yield Mistake((*where, key), "evolve searches coefficients alone; leave one of them out")
    if (method := known_method(search.method)) and not method.weighted:
        yield Mistake(
            (*where, "evolve"), f"{search.method} takes no coefficients, or none below 0; list values under over"
        )
    if "coefficients" in search.values:
        yield Mistake((*where, "coefficients"), "evolve searches them; leave one of them out")
    if len(params.tasks) < 2:
        yield Mistake((*where, "evolve"), "there is one task, and so one coefficient; search scaling under over")


def searched_values(search: Search) -> Mapping[str, list[Any]]:
    """Return each searched parameter's values: the search's own, the paper's, or the defaults for all methods."""
    method = known_method(search.method)
    if search.over or method is None:
        return search.over
    paper = method.searched if search.grid == "paper" else None
    known = paper or default_grid(method.parameters.model_fields)
    return {name: list(values) for name, values in known.items() if name not in search.values}


def own_of(search: Search) -> list[str]:
    """Name the parameters of a paper's grid that are chosen for each task on its own."""
    method = known_method(search.method)
    if method is None or search.tried != "paper":
        return []
    return [name for name in method.own if name in searched_values(search)]


def search_candidates(search: Search) -> list[dict[str, Any]]:
    """Return the values of each candidate, without fixed parameters.

    For an unknown method, and for CMA-ES, whose values depend on scores: one empty map.
    """
    return (
        value_combinations(searched_values(search)) if search.evolve is None and known_method(search.method) else [{}]
    )


def candidate_count(search: Search) -> int:
    """Return the number of a search's candidates."""
    if search.evolve is None:
        return len(search_candidates(search)) + bool(own_of(search))
    return 1 + search.evolve.generations * search.evolve.population
