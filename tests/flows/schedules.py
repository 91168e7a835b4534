"""Real deployments, a real Prefect server that schedules, and a real worker."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import yaml

from dvcfleet.prefect_adapter.server import PrefectServer
from tests import PYTHONPATH
from tests.support import LIMIT_S, forking, wait_until

ROOT = Path(__file__).parents[2]
POOL = "here"


class Schedules:
    """A Prefect server that schedules, and a process worker's pool on it."""

    def __init__(self, server: PrefectServer, home: Path) -> None:
        self.api = server.wait()
        self._auth = httpx.BasicAuth(*server.environment["PREFECT_API_AUTH_STRING"].split(":"))
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **server.environment,
            "PREFECT_HOME": str(home),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), PYTHONPATH]),
            "HF_HUB_OFFLINE": "1",
        }
        self.environment.pop("DVCFLEET_RUN", None)
        self.post("work_pools/", {"name": POOL, "type": "process"})

    def post(self, path: str, content: dict[str, Any]) -> Any:
        """Ask the server something; again where its database was busy, as Prefect's own clients do."""
        answer = httpx.post(f"{self.api}/{path}", json=content, timeout=LIMIT_S, auth=self._auth)
        while answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            time.sleep(1)
            answer = httpx.post(f"{self.api}/{path}", json=content, timeout=LIMIT_S, auth=self._auth)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def deploy(self, folder: Path, *deployments: dict[str, Any]) -> None:
        """Write prefect.yaml and hand it over, as a user does."""
        write_deployments(folder, *deployments)
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        done = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def pause(self, deployment: str) -> None:
        """Let a deployment's schedule rest, and forget the runs that are due."""
        self.post(f"deployments/{self._id(deployment)}/pause_deployment", {})

    def run_of(self, deployment: str, due_in_s: float = 0, within_s: float = LIMIT_S) -> dict[str, Any]:
        """Have a deployment run once more, some seconds ahead; return the run when it has ended."""
        return self.end_of(self.start(deployment, due_in_s), within_s)

    def start(self, deployment: str, due_in_s: float = 0) -> str:
        """Have a deployment run once more, some seconds ahead; return the run's id."""
        due = datetime.now(UTC) + timedelta(seconds=due_in_s)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
        return str(self.post(f"deployments/{self._id(deployment)}/create_flow_run", {"state": state})["id"])

    def state_of(self, run: str) -> str:
        """Return the name of the state that a run is in."""
        (found,) = self.post("flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return str(found["state_name"])

    def end_of(self, run: str, within_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait until a run has ended; return it."""
        return self._ended({"flow_runs": {"id": {"any_": [run]}}}, within_s)

    def first_run_of(self, deployment: str, within_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for the first run that a deployment's schedule starts; return it when it has ended."""
        return self._ended({"deployments": {"name": {"any_": [deployment]}}}, within_s)

    def _id(self, deployment: str) -> str:
        found = httpx.get(f"{self.api}/deployments/name/merganser/{deployment}", timeout=LIMIT_S, auth=self._auth)
        return str(found.json()["id"])

    def _ended(self, filters: dict[str, Any], within_s: float) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            runs = self.post("flow_runs/filter", {**filters, "sort": "EXPECTED_START_TIME_ASC"})
            return [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")]

        wait_until(found, within_s)
        return found()[0]

    @contextmanager
    def worker(self, log: Path) -> Iterator[None]:
        """Have a worker take what is due while the block lasts."""
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        with log.open("w") as file:
            process = subprocess.Popen(
                command, cwd=log.parent, env=self.environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            finally:
                process.kill()


@contextmanager
def serving_schedules(home: Path) -> Iterator[Schedules]:
    """Start the server while the block lasts."""
    with forking():
        server = PrefectServer(home, schedules=True)
    try:
        yield Schedules(server, home)
    finally:
        server.stop()


def deployment(name: str, due_in_s: float | None = None, every_s: int = 60, **parameters: Any) -> dict[str, Any]:
    """Describe a deployment of the comparison in prefect.yaml's words, due some seconds ahead and then each minute."""
    anchor = datetime.now(UTC) + timedelta(seconds=due_in_s or 0)
    schedule = {"interval": every_s, "anchor_date": anchor.isoformat(), "timezone": "UTC"}
    return {
        "name": name,
        "entrypoint": "merganser.flows.scheduled.scheduled",
        "parameters": parameters,
        "schedules": [] if due_in_s is None else [schedule],
        "work_pool": {"name": POOL},
    }


def write_deployments(folder: Path, *deployments: dict[str, Any]) -> None:
    """Write a prefect.yaml."""
    (folder / "prefect.yaml").write_text(yaml.safe_dump({"name": "toy", "deployments": list(deployments)}))
