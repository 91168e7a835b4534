"""Run a repository's schedules on this machine: a Prefect server on loopback, and the deployments of prefect.yaml."""

from contextlib import chdir
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.repository import opened, state_folder
from flows.ui import prefect_page
from merganser.errors import InputError
from merganser.limits import read_yaml

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

FILE = Path("prefect.yaml")
# The supported keys of a deployment in prefect.yaml; `work_pool` is for workers elsewhere.
_KEYS = ("name", "entrypoint", "description", "tags", "parameters", "paused")


def serve(repo: Path) -> None:
    """Start the repository's deployments in prefect.yaml on schedule, until stopped by Ctrl-C or SIGTERM.

    Uses the server at PREFECT_API_URL, or starts one on loopback. Raises InputError for an error in prefect.yaml.
    """
    with opened(repo) as dvc_repo:
        root, home = Path(dvc_repo.root_dir), state_folder(dvc_repo) / "prefect"
    with chdir(root):
        declared = read_declared(FILE)
        with prefect_page(home, schedules=True) as wait:
            address = wait()
            import prefect

            deployments = [make_deployment(entry) for entry in declared]
            names = ", ".join(deployment.full_name for deployment in deployments)
            print(f"Prefect  {address}\nserving {names}; Ctrl-C stops it.", flush=True)
            prefect.serve(*deployments, print_starting_message=False)


def read_declared(path: Path) -> list[dict[str, Any]]:
    """Return the deployments that a prefect.yaml declares; raise InputError if there are none."""
    content = read_yaml(path)
    declared = content.get("deployments") if isinstance(content, dict) else None
    if not declared or not all(
        isinstance(entry, dict) and {"name", "entrypoint"} <= entry.keys() for entry in declared
    ):
        raise InputError(f"{path}: expected `deployments`, a list of maps that have a name and an entrypoint each")
    return declared


def make_deployment(entry: dict[str, Any]) -> "RunnerDeployment":
    """Turn a deployment of prefect.yaml into Prefect's object; raise InputError for an invalid one."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule

    limit = entry.get("concurrency_limit")
    try:
        return RunnerDeployment.from_entrypoint(
            **{key: entry[key] for key in _KEYS if key in entry},
            schedules=[Schedule(**_in_seconds(item)) for item in entry.get("schedules") or []],
            concurrency_limit=ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else limit,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{FILE}: {entry['name']}: {error}") from error


def _in_seconds(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"interval": timedelta(seconds=item["interval"])} if "interval" in item else item
