"""Deployments of prefect.yaml, run by a real server and a real worker."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TextIO

import pytest
import yaml

from dvcfleet.repository import opened, write_lock
from tests import PYTHONPATH
from tests.dvcfleet.test_run import commands_in
from tests.dvcfleet.test_server import servers_of
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.faults.test_clock import DAY, moved_clock
from tests.flows.schedules import Schedules, deployment, serving_schedules, write_deployments
from tests.support import LIMIT_S, python, wait_until

ROOT = Path(__file__).parents[2]
FLOW = "merganser.flows.scheduled.scheduled"
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Schedules]:
    home = tmp_path_factory.mktemp("schedules")
    with serving_schedules(home) as served, served.worker(home / "worker.log"):
        yield served


@pytest.mark.drill
def test_a_deployment_runs_by_itself_and_later_only_what_changed(toy: Make, schedules: Schedules) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    schedules.deploy(chain.path, deployment("often", due_in_s=15, workers=2))
    first = schedules.first_run_of("often")
    schedules.pause("often")
    assert (first["state_name"], first["auto_scheduled"]) == ("Completed", True)
    assert (first["state"]["message"], chain.ran()) == ("3 done", ["cut", "turn", "end"])
    second = schedules.run_of("often", due_in_s=3)
    assert (second["state_name"], chain.ran()) == ("Completed", [])
    assert second["state"]["message"] == "nothing to do: 3 stages are up to date"
    chain.write("params.yaml", "turn: {times: 2}\n")
    third = schedules.run_of("often")
    assert (third["state_name"], chain.ran()) == ("Completed", ["turn"])
    assert chain.settled()


@pytest.mark.drill
def test_a_scheduled_run_that_finds_another_skips_as_told(toy: Make, schedules: Schedules) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    schedules.deploy(chain.path, deployment("skips", busy="skip"))
    with opened(chain.path) as repo, write_lock(repo):
        skipped = schedules.run_of("skips")
    assert (skipped["state_type"], skipped["state_name"]) == ("COMPLETED", "Skipped")
    assert f"another run is at work in this repository (process {os.getpid()}" in skipped["state"]["message"]
    assert chain.ran() == []


@pytest.mark.drill
def test_a_cancelled_run_ends_its_stages_and_the_next_goes_on(toy: Make, schedules: Schedules) -> None:
    slow = toy(
        """
        stages:
          quick: {cmd: echo quick >> log; echo 1 > quick, deps: [source], outs: [quick]}
          slow: {cmd: 'touch started; test -e hurry || sleep 600; echo 2 > slow', deps: [quick], outs: [slow]}
        """,
        {"source": ""},
    )
    schedules.deploy(slow.path, deployment("slow"))
    run = schedules.start("slow")
    wait_until(lambda: (slow.path / "started").exists())
    schedules.post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert schedules.end_of(run)["state_name"] == "Cancelled"
    assert "sleep 600" not in commands_in(slow.path)
    (slow.path / "hurry").touch()
    assert schedules.run_of("slow")["state"]["message"] == "1 done, 1 up to date"
    assert slow.ran() == ["quick"]


@pytest.mark.drill
@pytest.mark.parametrize("strategy", ["CANCEL_NEW", "ENQUEUE"])
def test_prefects_limit_drops_the_second_run_or_keeps_it(toy: Make, schedules: Schedules, strategy: str) -> None:
    slow = toy(
        "stages: {slow: {cmd: 'echo slow >> log; until [ -e hurry ]; do sleep 0.1; done; echo 1 > x', outs: [x]}}", {}
    )
    name = strategy.lower()
    limited = deployment(name) | {"concurrency_limit": {"limit": 1, "collision_strategy": strategy}}
    schedules.deploy(slow.path, limited)
    first = schedules.start(name)
    wait_until(lambda: (slow.path / "log").exists())
    second = schedules.start(name)
    if strategy == "CANCEL_NEW":
        assert schedules.end_of(second)["state_type"] == "CANCELLED"
    else:
        wait_until(lambda: schedules.state_of(second) == "AwaitingConcurrencySlot")
    (slow.path / "hurry").touch()
    assert schedules.end_of(first)["state"]["message"] == "1 done"
    if strategy == "ENQUEUE":
        assert schedules.end_of(second)["state"]["message"].startswith("nothing to do")
    assert slow.ran() == ["slow"]


NOTIFY = re.search(r"```python\n(.*?)```", (ROOT / "docs/schedules.md").read_text(), re.S)


@pytest.mark.drill
def test_a_failure_is_told_by_the_automation_of_the_page(toy: Make, schedules: Schedules) -> None:
    failing = toy("stages: {bad: {cmd: 'echo no luck; exit 3', outs: [x]}}", {})
    schedules.deploy(failing.path, deployment("fails"))
    with listening() as (address, told):
        assert NOTIFY
        environment = schedules.environment | {"NOTIFY_URL": address}
        subprocess.run([sys.executable, "-c", NOTIFY[1]], env=environment, check=True)
        run = schedules.run_of("fails")
        wait_until(lambda: bool(told))
    assert run["state_name"] == "Failed"
    assert "bad failed: exit code 3" in run["state"]["message"]
    assert len(told) == 1
    assert run["name"] in told[0]
    assert "bad failed: exit code 3" in told[0]


@pytest.mark.drill
def test_each_score_that_fell_is_an_event_once(toy: Make, schedules: Schedules) -> None:
    falling = toy(
        """
        stages:
          report: {cmd: mkdir -p report; cp source report/worse.csv, deps: [source], outs: [report]}
        """,
        {"source": "entry,column,before,after,p\nties,mean,0.8,0.6,0.001\n"},
    )
    schedules.deploy(falling.path, deployment("falls"))
    for _ in range(2):  # the second run writes no report
        assert schedules.run_of("falls")["state_name"] == "Completed"

    def events() -> list[dict[str, Any]]:
        found = schedules.post("events/filter", {"filter": {"event": {"name": ["merganser.score.worse"]}}})
        return list(found["events"])

    wait_until(lambda: bool(events()))
    (event,) = events()
    assert event["resource"]["prefect.resource.id"] == "merganser.score.ties/mean"
    assert event["payload"] == {"entry": "ties", "column": "mean", "before": 0.8, "after": 0.6, "p": 0.001}


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Have a webhook on this machine, and what it was told."""
    told: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", told
        server.shutdown()


@pytest.mark.drill
def test_serve_ends_without_a_complaint_when_it_is_told_to_stop(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    write_deployments(chain.path, deployment("later", due_in_s=DAY))
    with (chain.path / "said").open("w") as said, serving(chain, stderr=said) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("serving ")
        time.sleep(3)  # Prefect's runner takes SIGTERM over after it has begun
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert "never awaited" not in chain.read("said")
    assert servers_of(chain.path) == []


@pytest.mark.slow
def test_serve_ends_with_its_server_because_nothing_would_run_any_more(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    write_deployments(chain.path, deployment("later", due_in_s=DAY))
    with (chain.path / "said").open("w") as said, serving(chain, said) as process:
        (server,) = servers_of(chain.path)
        os.kill(server, signal.SIGKILL)
        assert process.wait(LIMIT_S) == 1
    assert "the Prefect server has ended; see " in chain.read("said")


@pytest.mark.drill
def test_serve_runs_the_schedules_of_prefect_yaml_until_it_is_told_to_stop(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    write_deployments(chain.path, deployment("soon", due_in_s=15))
    with serving(chain) as process:
        wait_until(lambda: (chain.path / "end.txt").exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert chain.ran() == ["cut", "turn", "end"]
    assert servers_of(chain.path) == []


@pytest.mark.drill
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_run_that_was_due_while_nothing_served_starts_with_the_next_serve(toy: Make, tmp_path: Path) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    write_deployments(chain.path, deployment("missed", due_in_s=DAY / 2, every_s=DAY))
    for moved in ({}, moved_clock(tmp_path, DAY)):
        assert not (chain.path / "end.txt").exists()
        with serving(chain, **moved) as process:
            wait_until(lambda: not moved or (chain.path / "end.txt").exists())  # noqa: B023
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0
    assert chain.ran() == ["cut", "turn", "end"]


def test_a_second_serve_is_refused_because_its_end_would_pause_the_schedules_of_the_first(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    write_deployments(chain.path, deployment("later", due_in_s=DAY))
    with serving(chain) as process:
        ended = serve(chain)
    assert ended.returncode == 75
    assert ended.stderr.startswith(f"another `merganser serve` is at work in this repository (process {process.pid}, ")


@pytest.mark.parametrize(
    ("schedule", "since", "due"),
    [
        ({"interval": 86_400, "anchor_date": NOW - timedelta(hours=2)}, NOW - timedelta(hours=3), True),
        ({"interval": 86_400, "anchor_date": NOW - timedelta(hours=2)}, NOW - timedelta(hours=1), False),
        ({"cron": "0 2 * * *", "timezone": "UTC"}, NOW - timedelta(days=1, minutes=1), True),
        ({"cron": "0 2 * * *", "timezone": "UTC"}, NOW, False),
        ({"rrule": "DTSTART:20260101T020000Z\nRRULE:FREQ=DAILY"}, NOW - timedelta(days=1, minutes=1), True),
    ],
)
def test_a_time_that_has_passed_is_due(schedule: dict[str, Any], since: datetime, due: bool) -> None:
    from merganser.flows.serve import is_due, make_deployment

    made = make_deployment({"name": "x", "entrypoint": "merganser.flows.scheduled.scheduled", "schedules": [schedule]})
    assert [is_due(each.schedule, since) for each in made.schedules] == [due]


def serve(toy: Toy) -> "subprocess.CompletedProcess[str]":
    """Have a `merganser serve` end by itself."""
    command = [*python(), "-m", "merganser.flows", "serve"]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    return subprocess.run(command, cwd=toy.path, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


@contextmanager
def serving(toy: Toy, stderr: TextIO | None = None, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Serve a repository's schedules once they are announced, with these environment variables besides."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment |= {"PYTHONPATH": PYTHONPATH, "PREFECT_RUNNER_POLL_FREQUENCY": "1", **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "merganser.flows", "serve"],
        cwd=toy.path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline().startswith("Prefect  http://127.0.0.1:")
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "prefect.yaml: no such file"),
        ({"deployments": []}, "prefect.yaml: expected `deployments`"),
        ({"deployments": [{"name": "a"}]}, "prefect.yaml: expected `deployments`"),
        ({"deployments": 7}, "prefect.yaml: expected `deployments`"),
        (
            {"deployments": [{"name": "a", "entrypoint": FLOW, "schedule": {"cron": "0 2 * * *"}}]},
            'prefect.yaml: a.schedule: `merganser serve` does nothing by this key; did you mean "schedules"?',
        ),
    ],
)
def test_a_mistake_in_prefect_yaml_is_named_before_a_server_is_started(
    toy: Make, content: object, complaint: str
) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    if content:
        chain.write("prefect.yaml", yaml.safe_dump(content))
    ended = serve(chain)
    assert ended.returncode == 2
    assert ended.stderr.startswith(complaint)
    assert not (chain.path / ".dvcfleet/prefect").exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"parameters": {"unknown": "skip"}}, r"\['unknown'\]"),
        ({"parameters": {"busy": "sikp"}}, "busy: Input should be 'refuse', 'wait' or 'skip'"),
        ({"parameters": {"workers": "two"}}, "workers: Input should be a valid integer"),
        ({"entrypoint": "merganser.flows.scheduled.nosuch"}, "'nosuch' not found"),
        ({"entrypoint": "merganser.nosuch.scheduled"}, "No module named 'merganser.nosuch'"),
        ({"schedules": [{"cron": 5}]}, "AttributeError"),
    ],
)
def test_a_deployment_whose_runs_would_fail_is_refused(entry: dict[str, Any], said: str) -> None:
    from merganser.errors import InputError
    from merganser.flows.serve import make_deployment

    with pytest.raises(InputError, match=rf"^prefect\.yaml: a: .*{said}"):
        make_deployment({"name": "a", "entrypoint": FLOW, **entry})


def test_another_comparisons_deployment_is_not_replaced(prefect_api: str) -> None:
    from prefect.runner import Runner

    from merganser.errors import InputError
    from merganser.flows.serve import make_deployment, serve_one

    entry = {"name": "served-by-one", "entrypoint": "merganser.flows.scheduled.scheduled"}
    for _ in range(2):
        serve_one(make_deployment(entry), Runner(), "comparison:one")
    with pytest.raises(
        InputError, match=r"prefect\.yaml: merganser/served-by-one: another comparison .*\(comparison:one\)"
    ):
        serve_one(make_deployment(entry), Runner(), "comparison:two")


@pytest.mark.parametrize(("outlived", "states"), [(False, ["CRASHED", "SCHEDULED"]), (True, ["RUNNING"])])
def test_a_run_that_was_killed_with_its_serve_is_marked_and_starts_again(
    outlived: bool, states: list[str], prefect_api: str
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.runner import Runner
    from prefect.states import Running

    from merganser.flows.serve import make_deployment, serve_one

    name = f"killed-{outlived}".lower()
    served = make_deployment({"name": name, "entrypoint": "merganser.flows.scheduled.scheduled"})
    serve_one(served, Runner(), "comparison:one")
    with get_client(sync_client=True) as client:
        deployed = client.read_deployment_by_name(served.full_name)
        run = client.create_flow_run_from_deployment(deployed.id)
        client.set_flow_run_state(run.id, Running(), force=True)
        serve_one(served, Runner(), "comparison:one", outlived)
        runs = [each for each in client.read_flow_runs() if each.deployment_id == deployed.id]
        assert sorted(each.state_type.value for each in runs if each.state_type) == states


def test_the_projects_own_deployments_can_be_served() -> None:
    from merganser.flows.serve import make_deployment, read_declared

    made = [make_deployment(entry) for entry in read_declared(ROOT / "prefect.yaml")]
    assert [each.full_name for each in made] == ["merganser/nightly", "merganser/weekly", "merganser-gc/monthly-gc"]
    assert [each.parameters for each in made] == [
        {"busy": "skip"},
        {"force": True, "busy": "wait"},
        {"keep": "30d", "keep_best": True},
    ]
    assert [(schedule.schedule.cron, schedule.active) for each in made for schedule in each.schedules] == [
        ("0 2 * * *", True),
        ("0 4 * * sun", True),
        ("0 7 1 * *", False),
    ]
