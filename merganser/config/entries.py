"""Check the entries and the studies of a `params.yaml` against the methods that they name.

This includes the entries that studies derive: one per value of a sweep, one per step and candidate of an ablation. It
is a module of its own because the registry of methods imports torch.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

from merganser import registry
from merganser.config.inputs import INPUTS, SECTIONS, input_of_entry
from merganser.config.inputs.base import known_method
from merganser.config.inputs.deltas import ROUNDING
from merganser.config.mistakes import Mistake, mistakes_at
from merganser.config.params import Params
from merganser.config.sections import STUDIED, Ablation, Entry, StudyEntry, Sweep
from merganser.config.text import KeyPath
from merganser.errors import InputError
from merganser.merging.binding import check_tasks
from merganser.merging.method import Method
from merganser.studies.candidates import default_grid, value_combinations
from merganser.studies.subsets import subset_sizes

WHOLE = "whole"  # the ablated entry itself, among its steps
FIXED = "fixed"  # in place of a budget: the bytes that an entry's parts have by themselves


def steps_of(ablation: Ablation) -> dict[str, Entry]:
    """Return an ablation's entries by step, the complete one first, without searched values."""
    return {step: ablation.at(values) for step, values in {WHOLE: {}, **ablation.steps}.items()}


def ablation_candidates(ablation: Ablation, entry: Entry) -> list[dict[str, Any]]:
    """Return the values that an ablation tries for one of its entries; one empty map if it searches nothing."""
    return value_combinations(
        {name: values for name, values in ablated_values(ablation).items() if name not in entry.values}
    )


def ablated_values(ablation: Ablation) -> Mapping[str, list[Any]]:
    """Return the parameters that an ablation searches: its own, or by default the method's scaling."""
    method = known_method(ablation.method)
    if ablation.over is not None or method is None:
        return ablation.over or {}
    return default_grid({"scaling"} & set(method.parameters.model_fields))


def budgets_of(params: Params, method: Method) -> dict[str, float | None]:
    """Return the budgets of a method's entry by name: those of the study, or its own size if that is fixed."""
    return {FIXED: None} if method.within is None else {f"{budget:g}": budget for budget in params.studies.budgets.at}


def studied_entries(params: Params) -> Iterator[tuple[KeyPath, Entry]]:
    """List the entries of all studies, each with its place in the file."""
    for place in STUDIED:
        for name, entry in attrgetter(".".join(place))(params).items():
            where = (*place, name)
            if isinstance(entry, Sweep):
                yield from ((where, entry.at(values)) for values in value_combinations(entry.over))
            elif isinstance(entry, Ablation):
                for step, one in steps_of(entry).items():
                    below = () if step == WHOLE else ("steps", step)
                    yield from (((*where, *below), one.at(values)) for values in ablation_candidates(entry, one))
            else:
                yield where, entry


def usage_mistakes(params: Params) -> list[Mistake]:
    """List the mistakes of all entries, of their inputs, and of studies."""
    mistakes: list[Mistake] = []
    for name, entry in params.methods.items():
        mistakes += _entry_mistakes(params, ("methods", name), entry, [len(params.tasks)])
    for input_kind in INPUTS.values():
        mistakes += input_kind.mistakes(params)
    mistakes += [*_merged_mistakes(params), *_study_mistakes(params), *_server_mistakes(params)]
    return mistakes


def _server_mistakes(params: Params) -> Iterator[Mistake]:
    """List entries whose merges no server can run."""
    if params.evaluation.server is None:
        return
    for name, entry in params.methods.items():
        with suppress(InputError):  # a method that there is not is said elsewhere
            if registry.get(entry.method).at_run_time:
                reason = f"evaluation.server runs models as they are, and {entry.method} computes more at evaluation"
                yield Mistake(("methods", name), f"{reason}; leave one of them out")


def _entry_mistakes(params: Params, where: KeyPath, entry: Entry, counts: Collection[int]) -> list[Mistake]:
    """Check one entry against its method's signature, for every number of tasks that it merges."""
    try:
        method = registry.get(entry.method)
    except registry.UntrustedMethodError:
        return []  # it is checked when it runs
    except InputError as error:
        return mistakes_at(where, error)
    inner = params.inner(entry)
    needed = [each for each in INPUTS.values() if each.is_read_by(method)]
    noted = [mistake for each in needed for mistake in each.reading_mistakes(params, entry, method)]
    noted = noted or [mistake for each in INPUTS.values() for mistake in each.reading_mistakes(params, entry, method)]
    mistakes = [mistake.below((*where, "reads")) for mistake in noted or _source_mistakes(params, inner, method)]
    if wrong := _value_mistakes(params, where, method, entry.values):
        return [*mistakes, *wrong]
    try:
        method.check_count(max(counts), ".".join(where))
    except InputError as error:
        return [*mistakes, *mistakes_at(where, error, has_place=True)]
    values = method.validate(".".join(where), entry.values)
    read, source = input_of_entry(entry), input_of_entry(inner)
    if source is None or (read is not None and read.says_values):
        return mistakes
    noted = list(source.value_mistakes(params, inner, method, values, counts))
    return [*mistakes, *(mistake.below(where) for mistake in noted)]


def _value_mistakes(params: Params, where: KeyPath, method: Method, values: Mapping[str, Any]) -> list[Mistake]:
    """Check an entry's values by its method; each mistake is placed at the value that alone causes it."""

    def check(part: Mapping[str, Any]) -> list[str]:
        try:
            check_tasks(method, method.validate(".".join(where), part), list(params.tasks), f"{'.'.join(where)}.")
        except InputError as error:
            return str(error).splitlines()
        return []

    lines = check(values)
    keys = {line: key for key, part in _parts(values) for line in check(part)} if lines else {}
    return [Mistake((*where, *keys.get(line, ())), line, has_place=True) for line in lines]


def _parts(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield each key of the values, also of maps within them, with the values that have only this key."""
    for key, value in values.items():
        yield (key,), {key: value}
        if isinstance(value, Mapping):
            yield from (((key, *inner), {key: part}) for inner, part in _parts(value))


def _merged_mistakes(params: Params) -> list[Mistake]:
    """Check the merges inside inputs' stages as entries, with the input's `of` as their `reads`."""
    mistakes = []
    for where, entry in (merged for input_kind in INPUTS.values() for merged in input_kind.entries(params)):
        for mistake in _entry_mistakes(params, where, entry, [len(params.tasks)]):
            is_read = mistake.place == (*where, "reads")
            mistakes.append(replace(mistake, place=(*where, "of")) if is_read else mistake)
    return list(dict.fromkeys(mistakes))


def _source_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[Mistake]:
    """Check an entry's input: the method's own, or one that may replace deltas and factors."""
    own = INPUTS[method.reads]
    read = own if own.name in SECTIONS else input_of_entry(entry) or own
    return read.source_mistakes(params, entry, method)


def _study_mistakes(params: Params) -> list[Mistake]:
    """Check the studies: an entry's inputs for the fewest tasks, and the singular vectors of a fraction."""
    mistakes = []
    tasks, continual = params.studies.tasks.methods, params.studies.continual.methods
    sizes = range(1, len(params.tasks) + 1)
    for study, entries, counts in (("tasks", tasks, subset_sizes(len(params.tasks))), ("continual", continual, sizes)):
        place = ("studies", study, "methods")
        if params.base_source is None and entries:
            reason = "the base is the mean of all tasks' models, so a subset's merge would hold the other tasks too"
            mistakes.append(Mistake(place, f"{reason}; it must be {{}}"))
        for name, entry in entries.items():
            where = (*place, name)
            mistakes += _entry_mistakes(params, where, entry, counts) or _subset_mistakes(where, entry)
    for name, sweep in params.studies.sweeps.items():
        mistakes += _sweep_mistakes(("studies", "sweeps", name), sweep)
    shares = params.studies.budgets.at
    if len(set(shares)) < len(shares):
        text = f"expected different shares of the bytes, got {shares}"
        mistakes.append(Mistake(("studies", "budgets", "at"), text))
    for name, budgeted in params.studies.budgets.methods.items():
        mistakes += _budget_mistakes(("studies", "budgets", "methods", name), budgeted)
    for name, ablation in params.studies.ablations.items():
        mistakes += _ablation_mistakes(("studies", "ablations", name), ablation)
    merged = [(where, entry) for where, entry in studied_entries(params) if where[1] not in ("tasks", "continual")]
    mistakes += dict.fromkeys(
        one
        for where, entry in merged
        for one in _entry_mistakes(params, where, entry, [len(params.tasks)]) or _run_time_mistakes(where, entry)
    )
    kept = params.decompose.rank_fraction
    for fraction in params.studies.rank.fractions:
        if kept + ROUNDING < fraction < 1:
            reason = f"decompose.rank_fraction keeps the first {kept:g} of each spectrum"
            text = f"{fraction:g}: {reason}; raise it, or write 1.0 for the whole delta"
            mistakes.append(Mistake(("studies", "rank", "fractions"), text))
    return mistakes


def _sweep_mistakes(where: KeyPath, sweep: Sweep) -> list[Mistake]:
    """Check a sweep's parameter and values, apart from the entries that they give."""
    names = ", ".join(sweep.over) or "none"
    if len(sweep.over) != 1:
        text = f"expected one parameter with its values, got {names}; write a sweep for each"
        return [Mistake((*where, "over"), text)]
    return _over_mistakes(where, sweep, sweep.over)


def _ablation_mistakes(where: KeyPath, ablation: Ablation) -> list[Mistake]:
    """Check an ablation's steps and searched parameters, apart from the entries that they give."""
    mistakes = _over_mistakes(where, ablation, ablation.over or {})
    if WHOLE in ablation.steps:
        text = "is the name of the entry itself; name the step otherwise"
        mistakes.append(Mistake((*where, "steps", WHOLE), text))
    idle = [step for step, values in ablation.steps.items() if ablation.values | values == ablation.values]
    text = "changes nothing; name the parameters that take the step out, with their values"
    return [*mistakes, *(Mistake((*where, "steps", step), text) for step in idle)]


def _budget_mistakes(where: KeyPath, entry: Entry) -> list[Mistake]:
    """Check that the size of an entry's parts can be computed, apart from its own mistakes."""
    with suppress(InputError):  # a method that there is not is said elsewhere
        method = registry.get(entry.method)
        if not method.overlay:
            return [Mistake(where, f"{entry.method} keeps no part per task, so it has no bytes to match; take it out")]
        fitted = [name for name in (method.within.parameters if method.within else ()) if name in entry.values]
        return [Mistake((*where, name), "is decided by the bytes; leave it out") for name in fitted]
    return []


def _over_mistakes(where: KeyPath, study: Sweep | Ablation, over: Mapping[str, list[Any]]) -> list[Mistake]:
    mistakes = []
    for name, values in over.items():
        if not values or any(value in values[:place] for place, value in enumerate(values)):
            text = f"expected different values, at least one, got {values}"
            mistakes.append(Mistake((*where, "over", name), text))
        if name in study.values:
            mistakes.append(Mistake((*where, name), "is under over too; leave one of them out"))
    return mistakes


def _run_time_mistakes(where: KeyPath, entry: Entry) -> list[Mistake]:
    text = f"{entry.method} puts something into the network at evaluation, and no study does; take it out"
    return [Mistake(where, text)] if registry.get(entry.method).at_run_time else []


def _subset_mistakes(where: KeyPath, entry: Entry) -> list[Mistake]:
    """Refuse values and inputs that make no sense for a subset of the tasks."""
    if (read := input_of_entry(entry)) and read.not_of_subsets:
        text = read.not_of_subsets.text.format(reads=entry.reads, method=entry.method)
        return [replace(read.not_of_subsets, text=text).below(where)]
    if isinstance(entry, StudyEntry) and entry.unseen and registry.get(entry.method).overlay:
        reason = f"{entry.method} keeps a part per task, so there is no model of the others"
        return [Mistake((*where, "unseen"), f"{reason}; leave it out")]
    return _run_time_mistakes(where, entry)
