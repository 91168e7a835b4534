"""A lineage as a tree of text lines: the target at the top, and under each stage its upstream stages."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from dvcfleet.lineage.steps import Artifact, FetchedSource, Lineage, LineageStep, Target
from dvcfleet.record.ledger import LEDGERS, Execution

_LONGEST = 160
SHORT = 10  # digits of a hash that are shown; --json has them all


def lineage_json(target: Target, lineage: Lineage) -> dict[str, Any]:
    """Return the target and its lineage as plain data; the keys are stable."""
    asked = {"text": target.text, "stages": list(target.stages), "files": list(target.files), "value": target.value}
    return {
        "target": asked,
        "steps": [asdict(step) for step in lineage.steps.values()],
        "environments": lineage.environments,
        "never_ran": list(lineage.never_ran),
    }


def as_lines(target: Target, lineage: Lineage) -> Iterator[str]:
    """Draw the tree. A stage that appears several times is described once, at its first appearance."""
    yield target.text if target.value is None else f"{target.text} = {short(target.value)}"
    for file in target.files:
        if file != target.text:
            yield f"  {file}"
    shown: set[str] = set()
    yield from _branches(lineage, target.stages, "", shown)
    for digest, content in lineage.environments.items():
        yield f"environment {digest[:SHORT]}: {environment_words(content)}"


def _branches(lineage: Lineage, names: Iterable[str], indent: str, shown: set[str]) -> Iterator[str]:
    names = list(names)
    for place, name in enumerate(names):
        last = place == len(names) - 1
        step = lineage.steps.get(name)
        if name in shown or step is None:
            yield f"{indent}{'└─' if last else '├─'} {name} ({'above' if step else 'never ran'})"
            continue
        shown.add(name)
        first, *rest = _description(step)
        yield f"{indent}{'└─' if last else '├─'} {first}"
        inner = indent + ("   " if last else "│  ")
        for line in rest:
            yield f"{inner}{'│' if step.needs else ' '}    {line}"
        yield from _branches(lineage, step.needs, inner, shown)


def _description(step: LineageStep) -> Iterator[str]:
    """Describe a step: its name, then one line per known fact."""
    yield f"{step.stage}: {step.description}" if step.description else step.stage
    for command in step.commands:
        yield f"command  {command}"
    yield from _items("wrote", step.outputs)
    yield from _items("read", (item for item in step.inputs if item.kind == "data"))
    yield from _items("source", (item for item in step.inputs if item.kind == "source"))
    yield from _items("code", (item for item in step.inputs if item.kind == "code"))
    for file, values in step.params.items():
        for key, value in values.items():
            yield f"{file}  {key} = {short(value)}"
    for origin in step.origins:
        yield from _origin(origin)
    if step.tracking_run:
        yield f"tracked  {step.tracking_run.tracker} run {step.tracking_run.id}"
    yield f"ran      {_execution(step.execution)}"
    if step.renamed:
        was = (step.renamed.was or {}).get("stage")
        yield f"renamed  {step.renamed.began}, since when what it read and wrote has these names; it ran as {was}"


def _items(word: str, items: Iterable[Artifact]) -> Iterator[str]:
    found = [f"{item.path} {item.about or (item.hash or 'unknown')[:SHORT]}" for item in items]
    if found:
        yield f"{word:<8} {', '.join(found)}"


def _origin(origin: FetchedSource) -> Iterator[str]:
    details = "".join(f", {key} {short(value)}" for key, value in origin.details.items())
    revision = f" at revision {origin.revision}" if origin.revision else ""
    yield f"origin   {origin.path}: {origin.kind} {origin.source}{details}{revision}"
    for name, file in origin.files.items():
        yield f"           {name}: {file['size']} bytes, sha256 {file['sha256']}"


def _execution(execution: Execution | None) -> str:
    if execution is None:
        return "outside a run: when and where is not known"
    restored = " (restored from DVC's cache)" if execution.result == "restored" else ""
    if execution.unproven:
        restored = " (restored from DVC's run cache, when no ledger said who made it)"
    commit = "no commit" if execution.commit is None else f"commit {execution.commit}"
    changes = " with changes" if execution.dirty else ""
    changes += f" (patch {execution.changes[:SHORT]})" if execution.changes else ""
    return (
        f"{execution.began}, {execution.seconds:.1f} s, {execution.peak_rss_bytes / 2**20:.0f} MiB, on {execution.host}"
        f"{restored}; run {execution.run}, flow run {execution.flow_run}; {commit}{changes}; "
        f"environment {execution.environment[:SHORT]}{by_another(execution)}"
    )


def by_another(execution: Execution) -> str:
    """Say that another ledger than the repository's own tells of an execution."""
    return f"; by another ledger, {LEDGERS}/{execution.ledger}" if execution.ledger else ""


def environment_words(content: dict[str, Any]) -> str:
    """Describe an environment in a line."""
    main = ("torch", "numpy", "dvc", "prefect", "mlflow")
    packages = content["packages"]
    named = ", ".join(f"{name} {packages[name]}" for name in main if name in packages)
    gpus = f", {', '.join(map(str, content['gpus']))}" if content["gpus"] else ""
    return (
        f"Python {content['python']}, {named}, {len(packages)} packages; "
        f"{content['platform']}, {content['processors']} x {content['processor']}{gpus}"
    )


def short(value: Any, longest: int = _LONGEST) -> str:
    """Write a value, cut off where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= longest else f"{text[:longest]}…"
