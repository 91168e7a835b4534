"""The results that depend on something: a content, a path, a source, a package."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from dvcfleet.errors import UserError, some, stage_count
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.steps import Lineage, LineageStep
from dvcfleet.paths import overlap

_SHORTEST = 6  # digits of a hash


@dataclass(frozen=True)
class Dependents:
    """What a text names, in words; the stages that read or wrote it, all after these, and the results among those.

    `results`: what the stages wrote that is a metric, or that no stage reads.
    """

    text: str
    named: tuple[str, ...]
    stages: tuple[str, ...]
    results: tuple[str, ...]


def find_dependents(lineage: Lineage, text: str) -> Dependents:
    """Find all that depends on a text: a hash or its begin, a path, a source, a package or `package==version`.

    A path or a source may be a pattern. Raises UserError where it names nothing.
    """
    named: dict[str, None] = {}
    first = set[str]()
    for step in lineage.steps.values():
        for words in _named_in(lineage, step, text):
            named[words] = None
            first.add(step.stage)
    if not named:
        raise UserError(f"{text}: no content, path, source or package that a recorded stage read, wrote or had")
    reached = dict.fromkeys(name for name, step in lineage.steps.items() if name in first)
    for name, step in lineage.steps.items():  # in topological order
        if name in first or any(up in reached for up in step.needs):
            reached[name] = None
    ordered = [name for name in lineage.steps if name in reached]
    return Dependents(text, tuple(named), tuple(ordered), tuple(_results(lineage, ordered)))


def _named_in(lineage: Lineage, step: LineageStep, text: str) -> Iterator[str]:
    is_hash = len(text) >= _SHORTEST and set(text) <= set("0123456789abcdef")
    for item in (*step.inputs, *step.outputs):
        if is_hash and item.hash and item.hash.startswith(text):
            yield f"{item.path}, md5 {item.hash}"
        elif fnmatch(item.path, text) or overlap(item.path, text):
            yield item.path
    for origin in step.origins:
        names = (origin.source, str(origin.details.get("hub", "")), *origin.licences)
        if any(name and fnmatch(name, text) for name in names) or origin.revision == text:
            yield f"{origin.path}, from {origin.source}{f'@{origin.revision}' if origin.revision else ''}"
        for name, file in origin.files.items():
            if is_hash and file["sha256"].startswith(text):
                yield f"{origin.path}/{name}, sha256 {file['sha256']}"
    if step.execution and (content := lineage.environments.get(step.execution.environment)):
        package, _, version = text.partition("==")
        there = content["packages"].get(package)
        if there is not None and version in ("", there):
            yield f"{package}=={there} in environment {step.execution.environment[:10]}"


def _results(lineage: Lineage, names: list[str]) -> Iterator[str]:
    read = {item.path for step in lineage.steps.values() for item in step.inputs}
    for name in names:
        metrics = {path_from_root(out) for out in lineage.stages[name].outs if out.metric}
        for item in lineage.steps[name].outputs:
            if item.path in metrics or not any(overlap(item.path, path) for path in read):
                yield item.path


def dependents_lines(found: Dependents) -> Iterator[str]:
    """Say it line by line: what is named, and what depends on it."""
    yield from found.named
    yield f"{stage_count(len(found.stages), ' depends', ' depend')} on it: {some(found.stages, 10)}"
    yield f"{len(found.results)} {'result' if len(found.results) == 1 else 'results'}:"
    yield from (f"  {name}" for name in found.results)
