"""The job template for Kubernetes, as Prefect's own worker makes a pod of it; no cluster is asked."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from merganser.flows.scheduled import scheduled
from tests.support import python

TEMPLATE = Path(__file__).parents[2] / "docs/kubernetes.json"
POOL = "test-kubernetes"


@pytest.fixture(scope="module")
def pool(prefect_api: str) -> str:
    """Make the work pool of docs/schedules.md on a real server."""
    command = [*python(), "-m", "prefect", "work-pool", "create", POOL, "--type", "kubernetes"]
    env = os.environ | {"PREFECT_API_URL": prefect_api}
    subprocess.run([*command, "--base-job-template", str(TEMPLATE)], env=env, check=True)
    return POOL


async def _manifest(pool: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Return the job that the pool's worker would ask Kubernetes for, of a run of a deployment with these variables."""
    async with get_client() as client:
        flow = await client.create_flow(scheduled)
        deployment = await client.create_deployment(flow, "nightly", work_pool_name=pool, job_variables=variables)
        run = await client.create_flow_run_from_deployment(deployment)
        template = (await client.read_work_pool(pool)).base_job_template
        configuration = await KubernetesWorkerJobConfiguration.from_template_and_values(template, variables)
        configuration.prepare_for_flow_run(run, deployment=await client.read_deployment(deployment))
    return configuration.job_manifest


async def _as_kubernetes_reads_it(manifest: dict[str, Any]) -> tuple[Any, Any]:
    async with ApiClient() as client:
        job = client.deserialize(SimpleNamespace(data=json.dumps(manifest)), "V1Job")
        return job, client.sanitize_for_serialization(job)


def test_the_template_gives_a_job_that_kubernetes_has_each_field_of(pool: str) -> None:
    manifest = asyncio.run(_manifest(pool, {"image": "registry.example.org/merganser:1", "gpus": 2, "memory": "64Gi"}))
    job, read = asyncio.run(_as_kubernetes_reads_it(manifest))
    limits = manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/gpu"] = str(limits["nvidia.com/gpu"])  # the client has quantities as text
    assert read == manifest  # a field that Kubernetes does not know would be gone
    (container,) = job.spec.template.spec.containers
    assert container.image == "registry.example.org/merganser:1"
    assert container.resources.limits == {"memory": "64Gi", "nvidia.com/gpu": "2"}
    assert container.args == ["prefect", "flow-run", "execute"]
    env = {each.name: each.value for each in container.env}
    assert env["PATH"].startswith(f"{container.working_dir}/.venv/bin:")
    # Evicted, or ended to make room for another, the run is taken up again by the next pod, on the same volume.
    assert (env["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"], job.spec.backoff_limit) == ("reschedule", 0)
    mounts, volumes = container.volume_mounts, job.spec.template.spec.volumes
    assert [each.name for each in mounts] == [each.name for each in volumes]
    assert mounts[0].mount_path == container.working_dir
    assert volumes[0].persistent_volume_claim.claim_name == "merganser"


@pytest.mark.parametrize(
    ("variables", "said"),
    [({}, "'image' is a required property"), ({"image": "a", "gpus": "two"}, "field 'gpus'.*'two' is not valid")],
)
def test_variables_that_do_not_fit_are_refused_when_a_deployment_is_made(
    pool: str, variables: dict[str, Any], said: str
) -> None:
    with pytest.raises(PrefectHTTPStatusError, match=said):
        asyncio.run(_manifest(pool, variables))
