"""Why a result is what it is, in ten lines: what made it, from what, when, where and by whom."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dvcfleet.errors import some
from dvcfleet.lineage.show import environment_words, short
from dvcfleet.lineage.steps import Lineage, LineageStep, Target
from dvcfleet.record.ledger import LEDGERS

_LONGEST = 40  # letters of a parameter; --json has them all


@dataclass(frozen=True)
class Why:
    """What a result comes from; `last`: the stages that wrote it, `before`: all before these, in reverse order.

    `parameters`: those of all these stages, by file and key; `commits`: with the digest of a patch where the code
    differed; `seconds`: of all stages together. Times are in UTC. Stages that ran outside this engine have none.
    `other_ledgers`: those of others that tell of stages of which the repository's own ledger does not. `identity`: of
    this repository; `made_in`: those of the others in which some of these stages ran.
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
    """Gather what made a target."""
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
        commits=tuple(dict.fromkeys((each.commit, each.changes) for each in ran if each.commit)),
        began=min((each.began for each in ran), default=None),
        ended=max((each.ended.isoformat(timespec="seconds") for each in ran), default=None),
        seconds=round(sum(each.seconds for each in ran), 3),
        hosts=tuple(dict.fromkeys(each.host for each in ran)),
        users=tuple(dict.fromkeys(each.user for each in ran if each.user)),
        runs=tuple(dict.fromkeys(each.run for each in ran)),
        environments=tuple(dict.fromkeys(each.environment for each in ran)),
        tracked=tuple(f"{run.tracker} run {run.id}" for step in steps if (run := step.tracking_run)),
        other_ledgers=tuple(dict.fromkeys(each.ledger for each in ran if each.ledger)),
        identity=lineage.identity,
        made_in=tuple(dict.fromkeys(one.identity for one in ran if one.identity not in (None, lineage.identity))),
    )


def _sources(steps: list[LineageStep]) -> Iterator[str]:
    for step in steps:
        for origin in step.origins:
            yield f"{origin.source}{f'@{origin.revision}' if origin.revision else ''} ({origin.path})"
        if not step.origins:
            yield from (item.path for item in step.inputs if item.kind == "source")


def why_lines(found: Why, lineage: Lineage) -> Iterator[str]:
    """Say it in ten lines; those of which nothing is known are left out."""
    target = found.target
    value = "" if target.value is None else f" = {short(target.value)}"
    yield f"{target.text}{value}, in {some(target.files) if target.files else 'no file'}"
    yield f"made by    {some(found.last)}: {short('; '.join(found.commands))}"
    lines = {
        "after": f"{len(found.before)} stages: {some(found.before, 5)}" * bool(found.before),
        "parameters": _parameters(found),
        "sources": some(found.sources, 5),
        "code": f"{some(found.code)}; {_commits(found)}" if found.code else _commits(found),
        "ran": f"{found.began} to {found.ended}, {found.seconds:.1f} s of stages" if found.began else "",
        "where": f"{', '.join(found.hosts)}, by {', '.join(found.users) or 'unknown'}, run {some(found.runs)}"
        * bool(found.hosts),
        "made in": f"another repository, {some(found.made_in)}; this one is {found.identity}" * bool(found.made_in),
        "told by": f"also {some(found.other_ledgers)} in {LEDGERS}, of others" * bool(found.other_ledgers),
        "with": "; ".join(environment_words(content) for content in lineage.environments.values()),
        "tracked": ", ".join(found.tracked),
    }
    yield from (f"{name:<10} {text}" for name, text in lines.items() if text)


def _parameters(found: Why) -> str:
    """List the parameters, those of the last stages first."""
    pairs = [pair for values in found.parameters.values() for pair in values.items()]
    return some([f"{key} = {short(value, _LONGEST)}" for key, value in pairs], 8)


def _commits(found: Why) -> str:
    named = [
        f"{(commit or '')[:10]}{f' with patch {changes[:10]}' if changes else ''}" for commit, changes in found.commits
    ]
    return f"commit {some(named)}" if named else "no commit"
