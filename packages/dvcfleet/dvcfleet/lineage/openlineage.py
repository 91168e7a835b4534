"""Lineage as OpenLineage events, one per line, by OpenLineage's own client.

A stage is a job, and each execution in the ledger a run of it: a START event, and a COMPLETE or a FAIL event. A stage
that ran outside this engine gives a JobEvent, which says what it reads and writes, but not when. What OpenLineage has
no facet for (host, commit, environment) becomes tags of the run. `dvcfleet.lineage.live` sends the same while a run
goes on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from openlineage.client import facet_v2
from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    JobEvent,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    set_producer,
)
from openlineage.client.serde import Serde

from dvcfleet import __version__
from dvcfleet.lineage.steps import Artifact, Lineage, LineageStep, as_text, by_ledger
from dvcfleet.messages import Result
from dvcfleet.record.ledger import Execution
from dvcfleet.terminal.secrets import masked

NAMESPACE = "dvcfleet"
_ABOUT_ENVIRONMENT = ("python", "platform", "cuda", "gpus", "container")  # all of it is in the environment's file

set_producer("urn:dvcfleet")


def to_json_lines(lineage: Lineage) -> str:
    """Return a lineage's events as JSON lines; stages without a known time get the current one."""
    now = datetime.now(UTC).isoformat()
    return "".join(f"{Serde.to_json(event)}\n" for event in to_events(lineage, now))


def to_events(lineage: Lineage, now: str) -> Iterator[RunEvent | JobEvent]:
    """Yield the events of stages that ran outside this engine, then those of all executions in the ledger by time."""
    for stage, step in lineage.steps.items():
        if not lineage.executions.get(stage):
            inputs, outputs = datasets(step)
            yield JobEvent(eventTime=now, job=job(stage, step), inputs=inputs, outputs=outputs)
    told = [(stage, one) for stage, several in lineage.executions.items() for one in several]
    for stage, one in sorted(told, key=lambda each: (each[1].began, each[1].ended)):
        its, about = (
            lineage.step_of(stage, one),
            openlineage_run(stage, one.run, one.flow_run, one.began, by_ledger(one)),
        )
        if its and one.ledger and one != lineage.maker(stage):  # our own ledger says who wrote it
            its = replace(its, outputs=())
        yield started(stage, its, about, one.began, lineage.repository, one.commit)
        yield ended(stage, its, about, one, lineage.environments.get(one.environment, {}), lineage.repository)


def openlineage_run(stage: str, name: str, flow_run: str | None, began: str, ledger: str = "") -> Run:
    """Return a stage's run, with the same id in every export and during the run."""
    identity = f"urn:dvcfleet:{flow_run or name}:{stage}" + ("" if flow_run else f":{began}") + ledger
    facets: dict[str, facet_v2.RunFacet] = {
        "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet(__version__, "dvcfleet")
    }
    if flow_run:
        parent = facet_v2.parent_run.Job(NAMESPACE, "dvc repository")
        facets["parent"] = facet_v2.parent_run.ParentRunFacet(facet_v2.parent_run.Run(flow_run), parent)
    return Run(str(uuid5(NAMESPACE_URL, identity)), facets)


def started(
    stage: str, step: LineageStep | None, about: Run, when: str, repository: str | None, commit: str | None
) -> RunEvent:
    """Return the event that a stage has started."""
    inputs, _ = datasets(step)
    what = job(stage, step, repository, commit)
    return RunEvent(eventType=RunState.START, eventTime=when, run=about, job=what, inputs=inputs, outputs=[])


def ended(
    stage: str,
    step: LineageStep | None,
    about: Run,
    one: Execution,
    environment: Mapping[str, Any],
    repository: str | None,
) -> RunEvent:
    """Return the event that a stage has ended, successfully or not; `step`: its inputs and outputs, if known."""
    inputs, outputs = datasets(step)
    failed = one.result == Result.FAILED
    facets = (about.facets or {}) | _about(one, step, environment)
    return RunEvent(
        eventType=RunState.FAIL if failed else RunState.COMPLETE,
        eventTime=one.ended.isoformat(),
        run=Run(about.runId, facets),
        job=job(stage, step, repository, one.commit),
        inputs=inputs,
        outputs=[] if failed else outputs,
    )


def stopped(stage: str, about: Run, when: str) -> RunEvent:
    """Return the event that a stage was stopped before it ended."""
    return RunEvent(eventType=RunState.ABORT, eventTime=when, run=about, job=job(stage, None), inputs=[], outputs=[])


def _about(one: Execution, step: LineageStep | None, environment: Mapping[str, Any]) -> dict[str, facet_v2.RunFacet]:
    known = {
        "run": one.run,
        "result": one.result,
        "host": one.host,
        "peak_rss_bytes": one.peak_rss_bytes,
        "cpu_s": one.cpu_s,
        "gpu_s": one.gpu_s,
        "read_bytes": one.read_bytes,
        "written_bytes": one.written_bytes,
        "commit": one.commit,
        "changed_since_commit": one.dirty,
        "environment": one.environment,
        "identity": one.identity,
        "other_ledger": one.ledger,
        **{name: environment.get(name) or None for name in _ABOUT_ENVIRONMENT},
    }
    tags = [
        facet_v2.tags_run.TagsRunFacetFields(name, as_text(value)) for name, value in known.items() if value is not None
    ]
    facets: dict[str, facet_v2.RunFacet] = {"tags": facet_v2.tags_run.TagsRunFacet(tags)}
    params = {
        f"{file}:{key}": value
        for file, values in (step.params if step else {}).items()
        for key, value in values.items()
    }
    if params:
        facets["executionParameters"] = facet_v2.execution_parameters_run.ExecutionParametersRunFacet(
            [
                facet_v2.execution_parameters_run.ExecutionParameter(masked(key), value=as_text(value))
                for key, value in params.items()
            ]
        )
    if one.result == Result.FAILED:
        facets["errorMessage"] = facet_v2.error_message_run.ErrorMessageRunFacet(masked(one.why or "failed"), "shell")
    return facets


def job(stage: str, step: LineageStep | None, repository: str | None = None, commit: str | None = None) -> Job:
    """Return a stage as a job: its commands, and the place of its code if git knows it."""
    facets: dict[str, facet_v2.JobFacet] = {
        "jobType": facet_v2.job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="DVCFLEET", jobType="DVC_STAGE"
        )
    }
    if step and step.commands:
        facets["sourceCode"] = facet_v2.source_code_job.SourceCodeJobFacet("shell", masked("\n".join(step.commands)))
    if step and step.description:
        facets["documentation"] = facet_v2.documentation_job.DocumentationJobFacet(masked(step.description))
    if repository and commit:
        facets["sourceCodeLocation"] = facet_v2.source_code_location_job.SourceCodeLocationJobFacet(
            type="git", url=repository, repoUrl=repository, version=commit
        )
    return Job(NAMESPACE, stage, facets)


def datasets(step: LineageStep | None) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return a stage's inputs and outputs, each with its hash as version, and its bytes."""
    if step is None:
        return [], []
    fetched = [
        InputDataset(origin.kind, masked(origin.name), facets=_version(origin.revision))
        for origin in step.origins
        if origin.kind not in ("local", "mean")  # the stage's own inputs already list these files
    ]
    read = [
        InputDataset(NAMESPACE, masked(item.path), facets=_version(item.hash), inputFacets=_size_read(item))
        for item in step.inputs
    ]
    wrote = [
        OutputDataset(NAMESPACE, masked(item.path), facets=_version(item.hash), outputFacets=_size_written(item))
        for item in step.outputs
    ]
    return fetched + read, wrote


def _size_read(item: Artifact) -> dict[str, Any]:
    if item.size is None:
        return {}
    return {"inputStatistics": facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(size=item.size)}


def _size_written(item: Artifact) -> dict[str, Any]:
    if item.size is None:
        return {}
    return {
        "outputStatistics": facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(size=item.size)
    }


def _version(version: str | None) -> dict[str, Any]:
    return {"version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(version)} if version else {}
