"""A lineage as a tree of text lines, with the target on top; and a summary in ten lines: from what, when, by whom."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dvcfleet.errors import some
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
    """Return the tree's lines. A stage that appears several times is described at its first appearance."""
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
    """Return the lines of a step: its name, then one line per known fact."""
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
        yield f"renamed  {step.renamed.began}, since when its inputs and outputs have these names; it ran as {was}"


def _items(word: str, items: Iterable[Artifact]) -> Iterator[str]:
    words = [f"{item.path} {item.about or (item.hash or 'unknown')[:SHORT]}" for item in items]
    if words:
        yield f"{word:<8} {', '.join(words)}"


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
    by_another = f"; by another ledger, {LEDGERS}/{execution.ledger}" if execution.ledger else ""
    changes += f" (patch {execution.changes[:SHORT]})" if execution.changes else ""
    return (
        f"{execution.began}, {execution.seconds:.1f} s{_used(execution)}, {execution.peak_rss_bytes / 2**20:.0f} MiB, "
        f"on {execution.host}"
        f"{restored}; run {execution.run}, flow run {execution.flow_run}; {commit}{changes}; "
        f"environment {execution.environment[:SHORT]}{by_another}"
    )


def _used(execution: Execution) -> str:
    """Return the CPU and GPU time of an execution, if its ledger has them."""
    amounts = {"CPU": execution.cpu_s, "GPU": execution.gpu_s}
    parts = [f"{seconds:.1f} s of {kind} time" for kind, seconds in amounts.items() if seconds]
    return f" ({', '.join(parts)})" if parts else ""


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
    """Return a value as text, shortened if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= longest else f"{text[:longest]}…"


_LONGEST_VALUE = 40  # letters of a parameter; --json has them all


@dataclass(frozen=True)
class Why:
    """The origin of a result; `last`: the stages that wrote it, `before`: all stages before these, in reverse order.

    `parameters`: of all these stages, by file and key; `commits`: with the digest of a patch if there were
    uncommitted changes; `seconds`: of all stages together. Times are in UTC. Stages that ran outside this engine
    have none. `other_ledgers`: other ledgers with stages that the repository's own ledger lacks.
    """

    target: Target
    last: tuple[str, ...]
    before: tuple[str, ...]
    commands: tuple[str, ...]
    parameters: dict[str, dict[str, Any]]
    sources: tuple[str, ...]
    code: tuple[str, ...]
    commits: tuple[tuple[str, str | None], ...]
    began: str | None
    ended: str | None
    seconds: float
    hosts: tuple[str, ...]
    users: tuple[str, ...]
    runs: tuple[str, ...]
    environments: tuple[str, ...]
    tracked: tuple[str, ...]
    other_ledgers: tuple[str, ...] = ()
    identity: str = ""
    made_in: tuple[str, ...] = ()


def why(target: Target, lineage: Lineage) -> Why:
    """Collect the origin of a target."""
    steps = list(lineage.steps.values())[::-1]
    last = [step for step in steps if step.stage in target.stages]
    before = [step for step in steps if step.stage not in target.stages]
    ran = [step.execution for step in steps if step.execution]
    parameters: dict[str, dict[str, Any]] = {}
    for step in steps:
        for file, values in step.params.items():
            parameters.setdefault(file, {}).update(values)
    return Why(
        target=target,
        last=tuple(step.stage for step in last),
        before=tuple(step.stage for step in before),
        commands=tuple(command for step in last for command in step.commands),
        parameters=parameters,
        sources=tuple(dict.fromkeys(_sources(steps))),
        code=tuple(dict.fromkeys(item.path for step in steps for item in step.inputs if item.kind == "code")),
        commits=tuple(dict.fromkeys((execution.commit, execution.changes) for execution in ran if execution.commit)),
        began=min((execution.began for execution in ran), default=None),
        ended=max((execution.ended.isoformat(timespec="seconds") for execution in ran), default=None),
        seconds=round(sum(execution.seconds for execution in ran), 3),
        hosts=tuple(dict.fromkeys(execution.host for execution in ran)),
        users=tuple(dict.fromkeys(execution.user for execution in ran if execution.user)),
        runs=tuple(dict.fromkeys(execution.run for execution in ran)),
        environments=tuple(dict.fromkeys(execution.environment for execution in ran)),
        tracked=tuple(f"{run.tracker} run {run.id}" for step in steps if (run := step.tracking_run)),
        other_ledgers=tuple(dict.fromkeys(execution.ledger for execution in ran if execution.ledger)),
        identity=lineage.identity,
        made_in=tuple(dict.fromkeys(one.identity for one in ran if one.identity not in (None, lineage.identity))),
    )


def _sources(steps: list[LineageStep]) -> Iterator[str]:
    for step in steps:
        for origin in step.origins:
            yield f"{origin.source}{f'@{origin.revision}' if origin.revision else ''} ({origin.path})"
        if not step.origins:
            yield from (item.path for item in step.inputs if item.kind == "source")


def why_lines(answer: Why, lineage: Lineage) -> Iterator[str]:
    """Return the origin in ten lines, without those of which nothing is known."""
    target = answer.target
    value = "" if target.value is None else f" = {short(target.value)}"
    yield f"{target.text}{value}, in {some(target.files) if target.files else 'no file'}"
    yield f"made by    {some(answer.last)}: {short('; '.join(answer.commands))}"
    lines = {
        "after": f"{len(answer.before)} stages: {some(answer.before, 5)}" * bool(answer.before),
        "parameters": _parameters(answer),
        "sources": some(answer.sources, 5),
        "code": f"{some(answer.code)}; {_commits(answer)}" if answer.code else _commits(answer),
        "ran": f"{answer.began} to {answer.ended}, {answer.seconds:.1f} s of stages" if answer.began else "",
        "where": f"{', '.join(answer.hosts)}, by {', '.join(answer.users) or 'unknown'}, run {some(answer.runs)}"
        * bool(answer.hosts),
        "made in": f"another repository, {some(answer.made_in)}; this one is {answer.identity}" * bool(answer.made_in),
        "told by": f"also {some(answer.other_ledgers)} in {LEDGERS}, of others" * bool(answer.other_ledgers),
        "with": "; ".join(environment_words(content) for content in lineage.environments.values()),
        "tracked": ", ".join(answer.tracked),
    }
    yield from (f"{name:<10} {text}" for name, text in lines.items() if text)


def _parameters(answer: Why) -> str:
    """List the parameters, those of the last stages first."""
    pairs = [pair for values in answer.parameters.values() for pair in values.items()]
    return some([f"{key} = {short(value, _LONGEST_VALUE)}" for key, value in pairs], 8)


def _commits(answer: Why) -> str:
    named = [
        f"{(commit or '')[:10]}{f' with patch {changes[:10]}' if changes else ''}" for commit, changes in answer.commits
    ]
    return f"commit {some(named)}" if named else "no commit"
