"""Lineage as OpenLineage events, one per line, by OpenLineage's own client.

A stage is a job; an execution in the ledger gives a START and a COMPLETE event. A stage that ran outside this engine
gives a JobEvent, which says what it reads and writes, but not when. Everything else (parameters, host, commit,
environment) becomes tags of the run.
"""

from collections.abc import Iterator
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
from openlineage.client.facet_v2 import job_type_job, parent_run, tags_run
from openlineage.client.serde import Serde

from dvcfleet.lineage.steps import Lineage, Origin, Step, as_text
from dvcfleet.record.ledger import Execution
from dvcfleet.secrets import masked

NAMESPACE = "dvcfleet"


def write(lineage: Lineage) -> str:
    """Write a lineage's events as JSON lines; stages without a known time have the present one."""
    now = datetime.now(UTC).isoformat()
    return "".join(f"{Serde.to_json(event)}\n" for event in to_events(lineage, now))


def to_events(lineage: Lineage, now: str) -> Iterator[RunEvent | JobEvent]:
    """Yield a lineage's events, each stage's after those of its upstream stages."""
    set_producer("urn:dvcfleet")
    for step in lineage.steps.values():
        if step.execution:
            yield from _run_events(step, step.execution)
        else:
            yield JobEvent(eventTime=now, job=_job(step), inputs=_inputs(step), outputs=_outputs(step))


def _run_events(step: Step, done: Execution) -> Iterator[RunEvent]:
    run, job, inputs, outputs = _run(step, done), _job(step), _inputs(step), _outputs(step)
    ended = done.ended.isoformat()
    yield RunEvent(eventType=RunState.START, eventTime=done.began, run=run, job=job, inputs=inputs, outputs=[])
    yield RunEvent(eventType=RunState.COMPLETE, eventTime=ended, run=run, job=job, inputs=inputs, outputs=outputs)


def _run(step: Step, done: Execution) -> Run:
    about = {
        "run": done.run,
        "result": done.result,
        "host": done.host,
        "peak_rss_bytes": done.peak_rss_bytes,
        "commit": done.commit,
        "changed_since_commit": done.dirty,
        "environment": done.environment,
        **{f"params:{file}": values for file, values in step.params.items()},
    }
    tags = [tags_run.TagsRunFacetFields(name, as_text(value)) for name, value in about.items() if value is not None]
    facets: dict[str, facet_v2.RunFacet] = {"tags": tags_run.TagsRunFacet(tags)}
    if done.flow_run:
        parent = parent_run.Job(NAMESPACE, "dvc repository")
        facets["parent"] = parent_run.ParentRunFacet(parent_run.Run(done.flow_run), parent)
    # A run has the same id in every export.
    identity = f"urn:dvcfleet:{done.run}:{done.stage}:{done.entry}:{done.began}"
    return Run(str(uuid5(NAMESPACE_URL, identity)), facets)


def _job(step: Step) -> Job:
    facets: dict[str, facet_v2.JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(processingType="BATCH", integration="DVCFLEET", jobType="DVC_STAGE"),
        "sourceCode": facet_v2.source_code_job.SourceCodeJobFacet("shell", masked("\n".join(step.commands))),
    }
    if step.description:
        facets["documentation"] = facet_v2.documentation_job.DocumentationJobFacet(step.description)
    return Job(NAMESPACE, step.stage, facets)


def _inputs(step: Step) -> list[InputDataset]:
    fetched = [
        InputDataset(origin.kind, masked(_name(origin)), facets=_version(origin.revision))
        for origin in step.origins
        if origin.kind not in ("local", "mean")  # the stage's own inputs already list these files
    ]
    return fetched + [InputDataset(NAMESPACE, masked(i.path), facets=_version(i.hash)) for i in step.inputs]


def _outputs(step: Step) -> list[OutputDataset]:
    return [OutputDataset(NAMESPACE, masked(i.path), facets=_version(i.hash)) for i in step.outputs]


def _name(origin: Origin) -> str:
    return str(origin.details.get("hub", origin.source))


def _version(found: str | None) -> dict[str, Any]:
    return {"version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(found)} if found else {}
