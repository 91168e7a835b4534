"""Check the entries and the studies of a `params.yaml` against the methods they name.

In a module of its own, because the registry of methods imports torch.

The entries that studies merge all tasks by: a sweep one a value, an ablation one a step and searched value.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from merganser import registry
from merganser.config.inputs import INPUTS, SECTIONS, input_of_entry
from merganser.config.inputs.base import known_method
from merganser.config.inputs.deltas import ROUNDING
from merganser.config.params import Ablation, Entry, Params, StudyEntry, Sweep
from merganser.config.vocabularies import vocabulary_mistakes
from merganser.errors import InputError
from merganser.merging.binding import check_tasks
from merganser.merging.method import Method
from merganser.studies.candidates import default_grid, value_combinations
from merganser.studies.subsets import subset_sizes

WHOLE = "whole"  # the ablated entry itself, among its steps
FIXED = "fixed"  # in place of a budget: the bytes that an entry's parts have by themselves


def sweep_entries(sweep: Sweep) -> list[Entry]:
    """List the entries of a sweep, in the order of its values."""
    return [sweep.at(values) for values in value_combinations(sweep.over)]


def steps_of(ablation: Ablation) -> dict[str, Entry]:
    """Return an ablation's entries by their step, the whole one first, without what is searched for each."""
    return {step: ablation.at(values) for step, values in {WHOLE: {}, **ablation.steps}.items()}


def ablation_candidates(ablation: Ablation, entry: Entry) -> list[dict[str, Any]]:
    """Return the values of parameters that are tried for one entry of an ablation; one empty map for none."""
    return value_combinations(
        {name: values for name, values in ablated_values(ablation).items() if name not in entry.values}
    )


def ablated_values(ablation: Ablation) -> Mapping[str, list[Any]]:
    """Return what an ablation searches: its own, or the scaling of a method that has one."""
    method = known_method(ablation.method)
    if ablation.over is not None or method is None:
        return ablation.over or {}
    return default_grid({"scaling"} & set(method.parameters.model_fields))


def budgets_of(params: Params, method: Method) -> dict[str, float | None]:
    """Return the budgets of a method's entry by their names: those of the study, or its own size if that is fixed."""
    return {FIXED: None} if method.within is None else {f"{budget:g}": budget for budget in params.studies.budgets.at}


def studied_entries(params: Params) -> Iterator[tuple[str, Entry]]:
    """List the entries of all studies, each with its place in the file."""
    for name, entry in params.studies.tasks.methods.items():
        yield f"studies.tasks.methods.{name}", entry
    for name, sweep in params.studies.sweeps.items():
        for one in sweep_entries(sweep):
            yield f"studies.sweeps.{name}", one
    for name, budgeted in params.studies.budgets.methods.items():
        yield f"studies.budgets.methods.{name}", budgeted
    for name, ablation in params.studies.ablations.items():
        for step, one in steps_of(ablation).items():
            for values in ablation_candidates(ablation, one):
                yield f"studies.ablations.{name}" + ("" if step == WHOLE else f".steps.{step}"), one.at(values)


def usage_mistakes(params: Params) -> list[str]:
    """List the mistakes of all entries, of what they read and of studies, each with its place."""
    mistakes = []
    for name, entry in params.methods.items():
        mistakes += _entry_mistakes(params, f"methods.{name}", entry, [len(params.tasks)])
    for each in INPUTS.values():
        mistakes += each.mistakes(params)
    mistakes += [*_merged_mistakes(params), *_study_mistakes(params), *vocabulary_mistakes(params)]
    return [*mistakes, *_server_mistakes(params)]


def _server_mistakes(params: Params) -> Iterator[str]:
    """List the entries whose merges no server can run."""
    if params.evaluation.server is None:
        return
    for name, entry in params.methods.items():
        with suppress(InputError):  # a method that there is not is said elsewhere
            if registry.get(entry.method).at_run_time:
                reason = f"evaluation.server runs models as they are, and {entry.method} computes more at evaluation"
                yield f"methods.{name}: {reason}; leave one of them out"


def _entry_mistakes(params: Params, where: str, entry: Entry, counts: Collection[int]) -> list[str]:
    """Check one entry against the signature of its method, for every number of tasks that it merges."""
    try:
        method = registry.get(entry.method)
    except InputError as error:
        return [f"{where}: {error}"]
    inner = params.inner(entry)
    needed = [each for each in INPUTS.values() if each.is_read_by(method)]
    found = [mistake for each in needed for mistake in each.reading_mistakes(params, entry, method)]
    found = found or [mistake for each in INPUTS.values() for mistake in each.reading_mistakes(params, entry, method)]
    mistakes = [f"{where}.reads: {mistake}" for mistake in found or _source_mistakes(params, inner, method)]
    try:
        values = method.validate(where, entry.values)
        check_tasks(method, values, list(params.tasks), f"{where}.")
        method.check_count(max(counts), where)
    except InputError as error:
        return [*mistakes, *str(error).splitlines()]
    read, source = input_of_entry(entry), input_of_entry(inner)
    if source is None or (read is not None and read.says_values):
        return mistakes
    return [*mistakes, *(f"{where}{each}" for each in source.value_mistakes(params, inner, method, values, counts))]


def _merged_mistakes(params: Params) -> list[str]:
    """Check what the inputs' stages merge as entries: it stands under `of` what they read."""
    found = []
    for where, entry in (merged for each in INPUTS.values() for merged in each.entries(params)):
        for mistake in _entry_mistakes(params, where, entry, [len(params.tasks)]):
            found.append(mistake.replace(f"{where}.reads:", f"{where}.of:"))
    return list(dict.fromkeys(found))


def _source_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[str]:
    """Check what an entry reads: what its method does, or what may stand in the place of deltas and factors."""
    own = INPUTS[method.reads]
    read = own if own.name in SECTIONS else input_of_entry(entry) or own
    return read.source_mistakes(params, entry, method)


def _study_mistakes(params: Params) -> list[str]:
    """Check the studies: what an entry needs for the fewest tasks, and whether the vectors of a fraction are kept."""
    mistakes = []
    if params.base_source is None and params.studies.tasks.methods:
        reason = "the base is the mean of all tasks' models, so a subset's merge would hold the other tasks too"
        mistakes.append(f"studies.tasks.methods: {reason}; it must be {{}}")
    for name, entry in params.studies.tasks.methods.items():
        where = f"studies.tasks.methods.{name}"
        mistakes += _entry_mistakes(params, where, entry, subset_sizes(len(params.tasks))) or _subset_mistakes(
            where, entry
        )
    for name, sweep in params.studies.sweeps.items():
        mistakes += _sweep_mistakes(f"studies.sweeps.{name}", sweep)
    shares = params.studies.budgets.at
    if len(set(shares)) < len(shares):
        mistakes.append(f"studies.budgets.at: expected different shares of the bytes, got {shares}")
    for name, budgeted in params.studies.budgets.methods.items():
        mistakes += _budget_mistakes(f"studies.budgets.methods.{name}", budgeted)
    for name, ablation in params.studies.ablations.items():
        mistakes += _ablation_mistakes(f"studies.ablations.{name}", ablation)
    merged = [(where, entry) for where, entry in studied_entries(params) if not isinstance(entry, StudyEntry)]
    mistakes += dict.fromkeys(one for where, entry in merged for one in _merged_by_study(params, where, entry))
    kept = params.decompose.rank_fraction
    for fraction in params.studies.rank.fractions:
        if kept + ROUNDING < fraction < 1:
            reason = f"decompose.rank_fraction keeps the first {kept:g} of each spectrum"
            mistakes.append(
                f"studies.rank.fractions: {fraction:g}: {reason}; raise it, or write 1.0 for the whole delta"
            )
    return mistakes


def _sweep_mistakes(where: str, sweep: Sweep) -> list[str]:
    """Check a sweep's parameter and its values, but for what these make of an entry."""
    names = ", ".join(sweep.over) or "none"
    if len(sweep.over) != 1:
        return [f"{where}.over: expected one parameter with its values, got {names}; write a sweep for each"]
    return _over_mistakes(where, sweep, sweep.over)


def _ablation_mistakes(where: str, ablation: Ablation) -> list[str]:
    """Check an ablation's steps and what it searches, but for what these make of an entry."""
    mistakes = _over_mistakes(where, ablation, ablation.over or {})
    if WHOLE in ablation.steps:
        mistakes.append(f"{where}.steps.{WHOLE}: is the name of the entry itself; name the step otherwise")
    return [
        *mistakes,
        *(
            f"{where}.steps.{step}: changes nothing; name the parameters that take the step out, with their values"
            for step, values in ablation.steps.items()
            if ablation.values | values == ablation.values
        ),
    ]


def _budget_mistakes(where: str, entry: Entry) -> list[str]:
    """Check that an entry has parts whose bytes can be told, but for what is wrong with it as an entry."""
    with suppress(InputError):  # a method that there is not is said elsewhere
        method = registry.get(entry.method)
        if not method.overlay:
            return [f"{where}: {entry.method} keeps no part per task, so it has no bytes to match; take it out"]
        fitted = [name for name in (method.within.parameters if method.within else ()) if name in entry.values]
        return [f"{where}.{name}: is what the bytes decide; leave it out" for name in fitted]
    return []


def _over_mistakes(where: str, study: Sweep | Ablation, over: Mapping[str, list[Any]]) -> list[str]:
    mistakes = []
    for name, values in over.items():
        if not values or any(value in values[:place] for place, value in enumerate(values)):
            mistakes.append(f"{where}.over.{name}: expected different values, at least one, got {values}")
        if name in study.values:
            mistakes.append(f"{where}.{name}: is under over too; leave one of them out")
    return mistakes


def _merged_by_study(params: Params, where: str, entry: Entry) -> list[str]:
    """Check an entry that a study merges all tasks by."""
    mistakes = _entry_mistakes(params, where, entry, [len(params.tasks)])
    if mistakes or not registry.get(entry.method).at_run_time:
        return mistakes
    return [f"{where}: {entry.method} puts something into the network at evaluation, and no study does; take it out"]


def _subset_mistakes(where: str, entry: StudyEntry) -> list[str]:
    """Refuse what has no meaning, or no input, for a subset of the tasks."""
    if (read := input_of_entry(entry)) and read.not_of_subsets:
        return [where + read.not_of_subsets.format(reads=entry.reads, method=entry.method)]
    if entry.unseen and registry.get(entry.method).overlay:
        reason = f"{entry.method} keeps a part per task, so there is no model of the others"
        return [f"{where}.unseen: {reason}; leave it out"]
    return []
