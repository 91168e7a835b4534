"""Run a repository's schedules on this machine: a Prefect server on loopback, and the deployments of prefect.yaml."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.errors import in_one_line
from dvcfleet.process_settings import Stop
from dvcfleet.repository import held, is_at_work, opened, state_folder
from merganser.errors import InputError, did_you_mean
from merganser.flows.pages.ui import prefect_page
from merganser.flows.repositories.identity import identity
from merganser.limits import read_yaml

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.client.schemas.schedules import SCHEDULE_TYPES
    from prefect.deployments.runner import RunnerDeployment
    from prefect.runner import Runner

FILE = Path("prefect.yaml")
WATCH_S = 10.0
# The supported keys of a deployment in prefect.yaml, those that are turned into others, and those of work pools.
_KEYS = ("name", "entrypoint", "description", "tags", "parameters", "paused")
_TURNED = ("schedules", "concurrency_limit")
_OF_POOLS = ("work_pool", "build", "push", "pull", "version", "version_type", "enforce_parameter_schema")


def serve_deployments(repo: Path) -> None:
    """Start the repository's deployments in prefect.yaml on schedule, until stopped by Ctrl-C or SIGTERM.

    Uses the server at PREFECT_API_URL, or starts one on loopback. Raises InputError for an error in prefect.yaml.
    """
    with opened(repo) as dvc_repo:
        root, state = Path(dvc_repo.root_dir), state_folder(dvc_repo)
    with chdir(root), held(state / "serving", "another `merganser serve`"):  # its end would pause these too
        declared = read_declared(FILE)
        # Until Prefect's runner is at work, which takes SIGTERM over.
        with (
            suppress(KeyboardInterrupt),
            Stop().on_signals(signal.SIGTERM),
            prefect_page(state / "prefect", schedules=True) as wait,
        ):
            address = wait()
            from prefect.runner import Runner

            runner, outlived = Runner(pause_on_shutdown=True), is_at_work(state)
            deployments = [make_deployment(entry) for entry in declared]
            for deployment in deployments:
                serve_one(deployment, runner, f"comparison:{identity(root)}", outlived)
            names = ", ".join(deployment.full_name for deployment in deployments)
            print(f"Prefect  {address}\nserving {names}; Ctrl-C stops it.", flush=True)
            asyncio.run(_run_until_told_to_stop(runner, wait))


async def _run_until_told_to_stop(runner: "Runner", wait: Callable[[], str]) -> None:
    """Run Prefect's runner until SIGTERM, which ends it as Ctrl-C does: its deployments are paused.

    Prefect's own handler calls `Runner.stop` inside the event loop, and awaits nothing of it. Raises FailedError if the
    server ends, for which the runner would wait without a word.
    """
    loop = asyncio.get_running_loop()
    running, watching = asyncio.ensure_future(runner.start()), asyncio.ensure_future(_watch(wait))

    def stop(*_: Any, **__: Any) -> None:
        loop.call_soon_threadsafe(running.cancel)

    runner.handle_sigterm = stop  # type: ignore[method-assign]
    try:
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (watching, running):
            each.cancel()
        await asyncio.wait((running, watching))
    for each in (watching, running):
        with suppress(asyncio.CancelledError):
            each.result()


async def _watch(wait: Callable[[], str]) -> None:
    """Look at the server until it ends: `wait` raises FailedError then."""
    while True:
        await asyncio.sleep(WATCH_S)
        await asyncio.to_thread(wait)


def read_declared(path: Path) -> list[dict[str, Any]]:
    """Return the deployments in a prefect.yaml; raise InputError if there are none."""
    content = read_yaml(path)
    declared = content.get("deployments") if isinstance(content, dict) else None
    if not isinstance(declared, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "entrypoint"))
        for entry in declared or [None]
    ):
        raise InputError(f"{path}: expected `deployments`, a list of maps that have a name and an entrypoint each")
    known = (*_KEYS, *_TURNED, *_OF_POOLS)
    for entry in declared:
        for key in entry:
            if key not in known:
                reason = f"`merganser serve` does nothing by this key{did_you_mean(str(key), known)}"
                raise InputError(f"{path}: {entry['name']}.{key}: {reason}")
    return declared


def make_deployment(entry: dict[str, Any]) -> "RunnerDeployment":
    """Turn a deployment of prefect.yaml into Prefect's object; raise InputError for an invalid one."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment
    from prefect.flows import load_flow_from_entrypoint
    from prefect.schedules import Schedule

    limit = entry.get("concurrency_limit")
    try:
        load_flow_from_entrypoint(entry["entrypoint"]).validate_parameters(entry.get("parameters") or {})
        return RunnerDeployment.from_entrypoint(
            **{key: entry[key] for key in _KEYS if key in entry},
            schedules=[Schedule(**_in_seconds(item)) for item in entry.get("schedules") or []],
            concurrency_limit=ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else limit,
        )
    except (Exception, SystemExit) as error:  # a flow's module may raise anything, and Prefect has a dozen kinds
        raise InputError(f"{FILE}: {entry['name']}: {in_one_line(error)}") from error


def serve_one(deployment: "RunnerDeployment", runner: "Runner", owner: str, outlived: bool = False) -> None:
    """Have a runner start a deployment on schedule, and at once if a run was due or killed while nobody served it.

    `owner`: the tag of this comparison's deployments. `outlived`: whether a run may have outlived an earlier serve.
    Raises InputError if another comparison serves a deployment with this name.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    deployment.tags = [*(deployment.tags or []), owner]
    with get_client(sync_client=True) as client:
        try:
            deployed = client.read_deployment_by_name(deployment.full_name)
        except ObjectNotFound:
            makes_up = False
        else:
            _refuse_others(deployment, deployed.tags)
            was_killed = not outlived and _mark_killed(deployed, client)
            makes_up = not deployment.paused and (was_killed or _was_missed(deployment, deployed, client))
        runner.add_deployment(deployment)  # with which Prefect forgets the runs that were due
        if makes_up:
            client.create_flow_run_from_deployment(client.read_deployment_by_name(deployment.full_name).id)


def _refuse_others(deployment: "RunnerDeployment", tags: Sequence[str]) -> None:
    """Refuse to replace a deployment that another comparison serves; `tags`: those of the one on the server."""
    others = [tag for tag in tags if tag.startswith("comparison:") and tag not in (deployment.tags or [])]
    if others:
        reason = f"another comparison serves a deployment of this name on the Prefect server ({others[0]})"
        remedy = f"give this one another name, or `prefect deployment delete {deployment.full_name}`"
        raise InputError(f"{FILE}: {deployment.full_name}: {reason}; {remedy}")


def _mark_killed(deployed: "DeploymentResponse", client: "SyncPrefectClient") -> bool:
    """Mark as crashed the runs of a deployment that still count as running; return whether there are any.

    Only `merganser serve` starts them, one at a time in a repository, so the one that started these was killed.
    """
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as OfType
    from prefect.states import Crashed, StateType

    begun = OfType(any_=[StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
    of_it = FlowRunFilterDeploymentId(any_=[deployed.id])
    killed = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(deployment_id=of_it, state=FlowRunFilterState(type=begun))
    )
    for run in killed:
        client.set_flow_run_state(run.id, Crashed(message="killed with its `merganser serve`"), force=True)
    return bool(killed)


def _was_missed(deployment: "RunnerDeployment", deployed: "DeploymentResponse", client: "SyncPrefectClient") -> bool:
    """Tell whether an active schedule had a time between a deployment's last run and now."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.client.schemas.sorting import FlowRunSort

    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployed.id])),
        sort=FlowRunSort.START_TIME_DESC,
        limit=1,
    )
    since = max(time for time in (deployed.created, *(run.start_time for run in runs)) if time)
    before = [each.schedule for each in deployed.schedules if each.active]
    now = [each.schedule for each in deployment.schedules or () if each.active is not False]
    return any(is_due(each, since) for each in now if each in before)


def is_due(schedule: "SCHEDULE_TYPES", since: datetime) -> bool:
    """Tell whether a schedule had a time between then and now."""
    from prefect.server.schemas import schedules

    kind = getattr(schedules, type(schedule).__name__)  # the client's own know no dates
    dates = kind(**schedule.model_dump(exclude_none=True)).get_dates(1, start=since, end=datetime.now(UTC))
    return bool(asyncio.run(dates))


def _in_seconds(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"interval": timedelta(seconds=item["interval"])} if "interval" in item else item
