"""Check the entries and the studies of a `params.yaml` against the methods they name.

In a module of its own, because the registry of methods imports torch.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from merganser import registry
from merganser.config import searches
from merganser.config.learned import learned_mistakes, reading_mistakes
from merganser.config.params import Entry, Params, StudyEntry
from merganser.config.routed import beside_mistakes, beside_reading_mistakes
from merganser.config.statistics import statistic_reading_mistakes, statistics_mistakes
from merganser.errors import InputError, did_you_mean
from merganser.merging.by_layer import check_tasks, variants
from merganser.merging.method import Method
from merganser.studies.subsets import subset_sizes

ROUNDING = 1e-9


def usage_mistakes(params: Params) -> list[str]:
    """List the mistakes of all entries, difference vectors and studies, each with its place."""
    mistakes = []
    for name, entry in params.methods.items():
        mistakes += _entry_mistakes(params, f"methods.{name}", entry, [len(params.tasks)])
    mistakes += [*_difference_mistakes(params), *_embedding_mistakes(params), *beside_mistakes(params)]
    mistakes += [*learned_mistakes(params), *statistics_mistakes(params)]
    mistakes += [*searches.search_mistakes(params), *_candidate_mistakes(params)]
    return [*mistakes, *_study_mistakes(params)]


def _entry_mistakes(params: Params, where: str, entry: Entry, counts: Collection[int]) -> list[str]:
    """Check one entry against the signature of its method, for every number of tasks that it merges."""
    try:
        method = registry.get(entry.method)
    except InputError as error:
        return [f"{where}: {error}"]
    beside = [*_embedded_mistakes(params, entry, method), *beside_reading_mistakes(params, entry, method)]
    beside += [*reading_mistakes(params, entry, method), *searches.reading_mistakes(params, entry)]
    mistakes = [f"{where}.reads: {mistake}" for mistake in beside]
    inner = params.inner(entry)
    mistakes = mistakes or [f"{where}.reads: {mistake}" for mistake in _source_mistakes(params, inner, method)]
    try:
        values = method.validate(where, entry.values)
        check_tasks(values, list(params.tasks), f"{where}.")
        method.check_count(max(counts), where)
    except InputError as error:
        return [*mistakes, *str(error).splitlines()]
    if entry.joint is not None and (changing := _changing(values)):
        reason = f"{changing} the matrices before they are decomposed, so {entry.reads} is of no use"
        mistakes.append(f"{where}.reads: {reason}; read deltas")
    if inner.reads != "svd" or entry.search is not None:
        return mistakes
    for count in counts:
        needed, kept = method.share_needed(count, values), params.decompose.rank_fraction
        if needed is not None and needed > kept + ROUNDING:
            reason = f"needs the first {needed:g} of each spectrum for {count} tasks"
            return [*mistakes, f"{where}: {reason}, decompose.rank_fraction is {kept:g}; raise it"]
    return mistakes


def _candidate_mistakes(params: Params) -> list[str]:
    """Check each candidate of the searches as the entry that it may become."""
    mistakes: list[str] = []
    for name, search in params.searches.items():
        where, found = f"searches.{name}", []
        for candidate in searches.candidates_of(search):
            found += _entry_mistakes(params, where, search.entry(candidate), [len(params.tasks)])
        mistakes += dict.fromkeys(each.replace(f"{where}.reads:", f"{where}.of:") for each in found)
    return mistakes


def _embedded_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[str]:
    """Check that a method that needs text embeddings, and no other, reads something with them."""
    if entry.embedding is None and method.embeddings:
        fitting = [name for name, embedding in params.embeddings.items() if embedding.of == entry.reads]
        declare = f"declare embeddings: {{NAME: {{of: {method.reads}}}}}, and read embeddings/NAME"
        remedy = f"read embeddings/{fitting[0]}" if fitting else declare
        yield f"{method.name} needs the text embeddings of the tasks' class names, got {entry.reads!r}; {remedy}"
    elif entry.embedding is not None and not method.embeddings:
        yield f"{method.name} uses no text embeddings, got {entry.reads!r}; read {method.reads}"
    elif entry.embedding is not None:
        yield from _name_mistakes("embeddings", params.embeddings, entry.embedding, entry.reads)


def _embedding_mistakes(params: Params) -> Iterator[str]:
    """Check what text embeddings are read with: what methods read, and difference vectors that there are."""
    for name, embedding in params.embeddings.items():
        kind, _, difference = embedding.of.partition("/")
        if kind == "differences" and difference:
            for mistake in _name_mistakes("differences", params.differences, difference, embedding.of):
                yield f"embeddings.{name}.of: {mistake}"
        elif embedding.of not in ("deltas", "svd"):
            yield f"embeddings.{name}.of: expected deltas, svd or differences/NAME, got {embedding.of!r}"


def _source_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[str]:
    """Check what an entry reads: what its method does, difference vectors in its place, or a joint it starts with."""
    if method.reads == "statistics":
        yield from statistic_reading_mistakes(params, entry, method)
    elif entry.difference is not None:
        yield from _name_mistakes("differences", params.differences, entry.difference, entry.reads)
    elif entry.joint is not None and method.joint is not None:
        yield from _name_mistakes("joints", params.joints, entry.joint, entry.reads)
        yield from _side_mistakes(params, entry.joint, method)
    elif entry.reads != method.reads or method.reads == "differences":
        own = "" if method.reads == "differences" else f"{method.reads}, or "
        joint = f"joints/NAME of side {method.joint}, or " if method.joint else ""
        reason = f"{method.name} decomposes nothing jointly: it" if entry.joint else method.name
        yield f"{reason} reads {own}{joint}differences/NAME, got {entry.reads!r}"


def _name_mistakes(section: str, declared: Mapping[str, object], name: str, reads: str) -> Iterator[str]:
    if name not in declared:
        there = f"there are {', '.join(declared)}" if declared else "there are none"
        yield f"no {name!r} under {section}, {there}, got {reads!r}{did_you_mean(name, declared)}"


def _side_mistakes(params: Params, name: str, method: Method) -> Iterator[str]:
    """Check that a declared joint decomposition is the one that a method starts with."""
    if name in params.joints and params.joints[name].side != method.joint:
        fitting = [other for other, joint in params.joints.items() if joint.side == method.joint]
        remedy = f"read joints/{fitting[0]}" if fitting else f"declare one under joints with side: {method.joint}"
        yield f"{method.name} decomposes {method.joint}, joints.{name} is of {params.joints[name].side}; {remedy}"


def _changing(values: Mapping[str, Any]) -> str | None:
    """Say what weighs the tasks' deltas in an entry; nothing where it takes them as they are."""
    for each in variants(values):
        if each.get("coefficients") is not None:
            return "coefficients change"
        if isinstance(each.get("scaling"), Mapping):
            return "a scaling by task changes"
    return None


def _difference_mistakes(params: Params) -> Iterator[str]:
    """Check what difference vectors start from: an entry that gives one model, and not from difference vectors."""
    for name, difference in params.differences.items():
        where, merged = f"differences.{name}.merged", difference.merged
        if merged not in params.methods:
            yield f"{where}: no entry {merged!r} under methods{did_you_mean(merged, params.methods)}"
            continue
        entry = params.methods[merged]
        searched = params.inner(entry) if entry.search is not None else entry
        if searched.difference is not None:
            yield f"{where}: the entry {merged} reads difference vectors itself; name one that reads deltas or svd"
        elif entry.method in registry.names() and not registry.get(entry.method).one_model:
            yield f"{where}: the entry {merged} keeps a part per task; name one that gives one model for all tasks"


def _study_mistakes(params: Params) -> list[str]:
    """Check the studies: what an entry needs for the fewest tasks, and whether the vectors of a fraction are kept."""
    mistakes = []
    if params.base.is_mean and params.studies.tasks.methods:
        reason = "the base is the mean of all tasks' models, so a subset's merge would hold the other tasks too"
        mistakes.append(f"studies.tasks.methods: {reason}; it must be {{}}")
    for name, entry in params.studies.tasks.methods.items():
        where = f"studies.tasks.methods.{name}"
        mistakes += _entry_mistakes(params, where, entry, subset_sizes(len(params.tasks))) or _subset_mistakes(
            where, entry
        )
    kept = params.decompose.rank_fraction
    for fraction in params.studies.rank.fractions:
        if kept + ROUNDING < fraction < 1:
            reason = f"decompose.rank_fraction keeps the first {kept:g} of each spectrum"
            mistakes.append(
                f"studies.rank.fractions: {fraction:g}: {reason}; raise it, or write 1.0 for the whole delta"
            )
    return mistakes


def _subset_mistakes(where: str, entry: StudyEntry) -> list[str]:
    """Refuse what has no meaning, or no input, for a subset of the tasks."""
    if entry.difference is not None:
        reason = "difference vectors start from a merge of all tasks, so a subset's would hold the other tasks too"
        return [f"{where}.reads: {reason}; study a method that reads deltas or svd"]
    if entry.joint is not None:
        return [f"{where}.reads: {entry.reads} decomposes all tasks' matrices, not a subset's; read deltas"]
    if entry.unseen and registry.get(entry.method).overlay:
        return [
            f"{where}.unseen: {entry.method} keeps a part per task, so there is no model of the others; leave it out"
        ]
    if beside := registry.get(entry.method).beside:
        return [f"{where}: {entry.method} needs {beside}, trained for a merge of all tasks; take it out"]
    if registry.get(entry.method).learned:
        return [f"{where}.reads: {entry.reads} was learned of all tasks, not a subset's; take the entry out"]
    if registry.get(entry.method).embeddings:
        return [
            f"{where}: {entry.method} needs the tasks' text embeddings, which this study does not read; take it out"
        ]
    return []
