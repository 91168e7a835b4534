"""From dvc.yaml to a stage graph with a state for every stage, and the reasons if it is not up to date."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.objects import is_near_output
from dvcfleet.dvc_adapter.protocols import Dependency, Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import with_cause
from dvcfleet.dvc_adapter.run_cache import in_run_cache, may_check_out
from dvcfleet.dvc_adapter.stages import stage_graph
from dvcfleet.options import EVERYTHING, Options
from dvcfleet.planning.orphans import Orphan, find_orphans
from dvcfleet.planning.reasons import dependency_reasons, output_reasons, reasons_once, stage_reasons
from dvcfleet.planning.validation import check_letter_case, hash_predictor, is_validated, note_validated, validate
from dvcfleet.project import project_of
from dvcfleet.repository import opened
from dvcfleet.terminal.failures import is_mistake
from dvcfleet.waiting import Step, in_silence

FORCED = ("forced",)  # the reasons of a stage that runs whatever its state


class State(StrEnum):
    """What a run would do for a stage."""

    UP_TO_DATE = "up to date"
    RESTORABLE = "restorable"
    STALE = "stale"
    WAITING = "waiting"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class PlannedStage:
    """One stage: its DVC address, its state, the reasons, and the stages it reads from."""

    name: str
    state: State
    reasons: tuple[str, ...]
    needs: tuple[str, ...]
    # Whether its outputs' hashes are already known, so that the stages that read them can be judged.
    outputs_known: bool = False
    # Whether its command must run whatever its upstream stages produce.
    must_run: bool = False


@dataclass(frozen=True)
class StageChecks:
    """The checks that give a stage's state: why a dependency or an output changed, and which outputs are available.

    `ran_before` tells whether the outputs for its present inputs are known, `cached` whether those of dvc.lock are, and
    may take the place of what is in the workspace. `predicted` returns the hash that a dependency will have once these
    stages have run, None if that cannot be told.
    """

    dependency: Callable[[Dependency], list[str]] = dependency_reasons
    output: Callable[[Output], list[str]] = output_reasons
    ran_before: Callable[[Stage], bool] = in_run_cache
    cached: Callable[[Stage], bool] = may_check_out
    predicted: Callable[[Dependency, Sequence[str]], str | None] = lambda dep, writers: None


IN_WORKSPACE = StageChecks()
_MISSING = frozenset({"deleted", "not in cache"})  # DVC's words

ChecksFor = Callable[[Sequence[Stage]], StageChecks]
Upstream = Sequence[tuple[PlannedStage, Stage]]  # the stages that a stage reads from


def workspace_checks(steps: Sequence[Stage]) -> StageChecks:
    """Return the checks of stages whose data is in the workspace."""
    return StageChecks(dependency=reasons_once())


@dataclass(frozen=True)
class Plan:
    """All requested stages in topological order, and the orphans in dvc.lock."""

    planned: dict[str, PlannedStage]
    orphans: tuple[Orphan, ...]
    stages: dict[str, Stage] = field(repr=False)
    judge: "Judge" = field(repr=False, compare=False)

    @property
    def work(self) -> list[PlannedStage]:
        """The stages that are not up to date."""
        return [one for one in self.planned.values() if one.state is not State.UP_TO_DATE]

    @property
    def causes(self) -> dict[str, tuple[str, ...]]:
        """Why stages are not up to date, of those that would run even if no other stage did."""
        changed = (State.STALE, State.RESTORABLE)
        return {one.name: one.reasons for one in self.work if one.state in changed and not one.outputs_known}

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data; its keys are stable."""
        counts = Counter(one.state for one in self.planned.values())
        return {
            "stages": [
                {"name": one.name, "state": one.state.value, "reasons": list(one.reasons), "needs": list(one.needs)}
                for one in self.planned.values()
            ],
            "orphans": [
                {"name": orphan.name, "outs": list(orphan.outs), "readers": list(orphan.readers)}
                for orphan in self.orphans
            ],
            "counts": {state.value: counts[state] for state in State},
        }


def plan(repo: Path, options: Options = EVERYTHING, step: Step = in_silence) -> Plan:
    """Plan a run in the DVC repository at `repo`: all stages of its dvc.yaml, or those that the options name.

    `step` is told what is done next. Raises UserError for an unknown target, an invalid dvc.yaml, a folder that is not
    a DVC repository, or a mistake that the repository's project finds.
    """
    options = replace(options, folder=repo.absolute())
    with opened(repo) as dvc_repo:
        return validated_plan(dvc_repo, options, step=step)


def validated_plan(
    repo: Repo, options: Options, checks_for: ChecksFor = workspace_checks, step: Step = in_silence
) -> Plan:
    """Plan in an opened repository after its project's own checks; with the orphans, unless targets are named."""
    if not is_validated(repo):
        step("checking the project's files")
        validate(repo)
        note_validated(repo)
    step("reading dvc.yaml and comparing the stages' files")
    made = make_plan(repo, options, checks_for=checks_for)
    return made if options.targets else replace(made, orphans=tuple(find_orphans(repo)))


def make_plan(
    repo: Repo,
    options: Options = EVERYTHING,
    on_work: Callable[[], None] = lambda: None,
    checks_for: ChecksFor = workspace_checks,
) -> Plan:
    """Plan in an opened repository; `on_work` is called as soon as a stage is found that is not up to date.

    `checks_for` returns the checks of these stages: those of the workspace, unless their data is elsewhere.
    """
    graph, steps = stage_graph(repo, options)
    check_letter_case(graph)
    judge = Judge(options, {} if options.single_item else {o.fs_path: o for each in graph for o in each.outs})
    project = project_of(Path(repo.root_dir))
    distrusted = project.distrusted(steps)
    checks = replace(checks_for(steps), predicted=hash_predictor(repo.root_dir, project.predict_outputs))
    planned: dict[str, PlannedStage] = {}
    for stage in steps:
        upstream = [(planned[up.addressing], up) for up in graph.successors(stage) if up.addressing in planned]
        one = _judged(judge, stage, upstream, checks)
        if one.name in distrusted:
            one = _distrusted(one, distrusted[one.name])
        if one.state is not State.UP_TO_DATE:
            on_work()
        planned[one.name] = one
    return Plan(planned, (), {stage.addressing: stage for stage in steps}, judge)


def _judged(judge: "Judge", stage: Stage, upstream: Upstream, checks: StageChecks) -> PlannedStage:
    """Judge a stage; what DVC cannot read of it is that stage's failure, when its turn comes, and no other's."""
    try:
        return judge(stage, upstream, checks)
    except Exception as error:
        if is_mistake(error):
            raise
        needs = tuple(need.name for need, _ in upstream)
        waits = any(need.state is not State.UP_TO_DATE for need, _ in upstream)
        return PlannedStage(stage.addressing, State.WAITING if waits else State.STALE, (with_cause(error),), needs)


def _distrusted(planned: PlannedStage, why: str) -> PlannedStage:
    """Have a stage run whatever DVC has of it, unless it cannot; a reason of DVC's own goes first."""
    if planned.state is State.BLOCKED or planned.must_run:
        return planned
    return replace(planned, state=State.STALE, reasons=(*planned.reasons, why), outputs_known=False, must_run=True)


def _judge(stage: Stage, upstream: Upstream, options: Options, checks: StageChecks) -> PlannedStage:
    def planned(state: State, reasons: list[str], outputs_known: bool = False, must_run: bool = False) -> PlannedStage:
        needs = tuple(need.name for need, _ in upstream)
        return PlannedStage(stage.addressing, state, tuple(reasons), needs, outputs_known, must_run)

    lacking = [] if options.allow_missing or options.pull else missing_sources(stage)
    blocked = [f"dep {dep} missing, and no stage makes it" for dep in lacking]
    blocked += [f"reads from {need.name}, which is blocked" for need, _ in upstream if need.state is State.BLOCKED]
    if blocked:
        return planned(State.BLOCKED, blocked)
    if options.force:
        return planned(State.STALE, list(FORCED), must_run=True)
    changed, waits = _input_changes(stage, upstream, checks)
    if changed and not waits and not stage.frozen and checks.ran_before(stage):
        return planned(State.RESTORABLE, changed)
    if changed:
        # What it reads may be known only once the stages before it are restored.
        is_settled = all(need.state is State.UP_TO_DATE for need, _ in upstream)
        return planned(State.STALE, changed, must_run=is_settled and not waits)
    if waits:
        return planned(State.WAITING, [f"reads from {name}" for name in waits])
    lost = [reason for out in stage.outs for reason in checks.output(out)]
    if not lost:
        return planned(State.UP_TO_DATE, [], outputs_known=True)
    if checks.cached(stage):
        return planned(State.RESTORABLE, lost, outputs_known=True)
    return planned(State.STALE, lost, must_run=True)


def _input_changes(stage: Stage, upstream: Upstream, checks: StageChecks) -> tuple[list[str], list[str]]:
    """Return the reasons to run that are already known, and the stages that must end before the others are known."""
    reasons = stage_reasons(stage)
    if stage.frozen:  # DVC looks at nothing but its command and its outputs, also where it never ran
        return [each for each in reasons if each not in ("new stage", "always changed")], []
    if reasons == ["new stage"]:
        return reasons, [need.name for need, _ in upstream if need.state is not State.UP_TO_DATE]
    waits: list[str] = []
    for dep in stage.deps:
        writers = [(n, up) for n, up in upstream if n.state is not State.UP_TO_DATE and _writes(up, dep)]
        if not writers:
            reasons += checks.dependency(dep)
            continue
        names = [need.name for need, _ in writers]
        expected = checks.predicted(dep, names)
        if expected and expected != dep.hash_info.value:
            reasons.append(f"dep {dep} will change")
            waits += names
        elif not expected and not _will_be_restored(dep, writers):
            waits += names
    return reasons, list(dict.fromkeys(waits))


def _writes(stage: Stage, dep: Dependency) -> bool:
    if dep.fs_path is None:  # a data set of dvc.yaml, or a query of a database
        return False
    return any(dep.fs.overlaps(dep.fs_path, out.fs_path) for out in stage.outs)


def _will_be_restored(dep: Dependency, writers: Upstream) -> bool:
    """Tell whether the dependency will be restored from the cache with the bytes that the stage last read."""
    recorded = {out.fs_path: out.hash_info for need, up in writers if need.outputs_known for out in up.outs}
    return bool(dep.hash_info) and recorded.get(dep.fs_path) == dep.hash_info


@dataclass(frozen=True)
class Judge:
    """Gives stages their states, as a run's options ask; `outs` are all stages' outputs by their paths."""

    options: Options = EVERYTHING
    outs: Mapping[str, Output] = field(default_factory=dict, repr=False)

    def __call__(self, stage: Stage, upstream: Upstream = (), checks: StageChecks = IN_WORKSPACE) -> PlannedStage:
        """Judge a stage by those it reads from, unless these have ended; raise DVC's errors about the stage."""
        options = self.options
        if options.no_run_cache:
            checks = replace(checks, ran_before=lambda stage: False)
        tolerant = self._tolerant(checks)
        planned = _judge(stage, upstream, options, tolerant if options.allow_missing else checks)
        if options.force_downstream and any(need.state is not State.UP_TO_DATE for need, _ in upstream):
            names = [need.name for need, _ in upstream if need.state is not State.UP_TO_DATE]
            waiting = replace(planned, state=State.WAITING, reasons=tuple(f"reads from {name}" for name in names))
            is_decided = planned.must_run or planned.state is State.BLOCKED
            return planned if is_decided else replace(waiting, outputs_known=False)
        is_pulled = options.pull and planned.state in (State.STALE, State.RESTORABLE) and not options.force
        if is_pulled and _judge(stage, upstream, options, tolerant).state is State.UP_TO_DATE:
            return replace(planned, state=State.RESTORABLE, outputs_known=True, must_run=False)
        return planned

    def _tolerant(self, checks: StageChecks) -> StageChecks:
        """Return checks that take missing data for unchanged, unless its writer has written other bytes since."""

        def dependency(dep: Dependency) -> list[str]:
            if dep.exists:
                return checks.dependency(dep)
            out = self.outs.get(dep.fs_path)
            return [f"dep {dep} changed"] if out and out.hash_info != dep.hash_info else []

        def output(out: Output) -> list[str]:
            reasons = checks.output(out)
            return reasons if reasons and not _MISSING.issuperset(out.status().values()) else []

        return replace(checks, dependency=dependency, output=output)


def missing_sources(stage: Stage) -> list[Dependency]:
    """Return the stage's local dependencies that do not exist and that no stage writes."""
    if stage.frozen or not stage.cmd:
        return []
    return [
        dep
        for dep in stage.deps
        if dep.protocol == "local" and not dep.exists and not is_near_output(dep.repo, dep.fs_path)
    ]
