"""OpenLineage's events of a run while it goes on, as an HTTP server on this machine receives them."""

import json
import os
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from openlineage.client.event_v2 import RunEvent, RunState

from dvcfleet.lineage import live
from dvcfleet.lineage.openlineage import to_events
from tests.dvcfleet.test_lineage_export import NOW, files, lineage_of, locked, read_event, versions
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make

LOST = "OpenLineage's events do not arrive"


class Receiver:
    """A server that keeps the events it is sent."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.paths: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.paths.add(self.path)
                receiver.events.append(read_event(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                self.send_response(201)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Give a server to which this process's runs send their events."""
    made = Receiver()
    thread = Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENLINEAGE_URL", made.url)
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def kinds(received: Receiver, stage: str) -> list[RunState]:
    return [event.eventType for event in received.events if event.job.name == stage]


def test_each_stage_sends_its_start_and_its_end_as_the_export_has_them(toy: Make, receiver: Receiver) -> None:
    made = toy(CHAIN, CHAIN_FILES)
    assert made.run()[0] == 0
    assert receiver.paths == {"/api/v1/lineage"}
    assert [(event.job.name, event.eventType) for event in receiver.events] == [
        (stage, kind) for stage in ("cut", "turn", "end") for kind in (RunState.START, RunState.COMPLETE)
    ]
    for stage, entry in locked(made).items():
        start, end = (event for event in receiver.events if event.job.name == stage)
        assert start.run.runId == end.run.runId
        assert versions(end.inputs) == files(entry["deps"])
        assert versions(end.outputs) == files(entry["outs"])
    exported = [event for event in to_events(lineage_of(made), NOW) if isinstance(event, RunEvent)]
    assert {event.run.runId for event in exported} == {event.run.runId for event in receiver.events}
    ends = {event.job.name: event for event in exported if event.eventType is RunState.COMPLETE}
    for event in receiver.events:
        if event.eventType is RunState.COMPLETE:
            assert event.eventTime == ends[event.job.name].eventTime
            tags = {tag.key: tag.value for tag in ends[event.job.name].run.facets["tags"].tags}
            assert tags.items() <= {tag["key"]: tag["value"] for tag in event.run.facets["tags"]["tags"]}.items()


def test_a_stage_that_fails_sends_why_and_one_that_is_restored_both_events(toy: Make, receiver: Receiver) -> None:
    stages = """
stages:
  good:
    cmd: cp source good; echo $OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__URL > set
    deps: [source]
    outs: [good]
  bad: {cmd: "exit 7", deps: [good]}
"""
    made = toy(stages, {"source": "1"})
    made.run("good", "bad")
    failed = next(event for event in receiver.events if event.eventType is RunState.FAIL)
    assert failed.job.name == "bad"
    assert failed.run.facets["errorMessage"]["message"] == "exit code 7"
    assert made.read("set") == "\n"  # stages get no variable of the client's making
    made.write("source", "2")
    made.run("good")
    made.write("source", "1")
    receiver.events.clear()
    made.run("good")
    assert kinds(receiver, "good") == [RunState.START, RunState.COMPLETE]
    tags = {tag["key"]: tag["value"] for tag in receiver.events[-1].run.facets["tags"]["tags"]}
    assert tags["result"] == "restored"


def test_an_endpoint_that_is_down_is_said_once_and_the_run_goes_on(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://user:secret99@127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("OPENLINEAGE_URL", address)
    made = toy(CHAIN, CHAIN_FILES)
    code, text = made.run()
    assert code == 0
    assert text.count(LOST) == 1
    assert "secret99" not in text
    assert made.settled()
    assert not [name for name in os.environ if name.startswith("OPENLINEAGE__")]


def test_an_endpoint_that_never_answers_does_not_keep_a_run(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LAST_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        code, text = toy(CHAIN, CHAIN_FILES).run()
    assert (code, text.count(LOST)) == (0, 1)


def test_what_the_client_refuses_is_said_and_what_is_disabled_is_not_sent(
    toy: Make, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    made = toy(CHAIN, CHAIN_FILES)
    assert made.run()[0] == 0
    assert receiver.events == []
    monkeypatch.delenv("OPENLINEAGE_DISABLED")
    monkeypatch.setenv("OPENLINEAGE_URL", "nowhere")
    made.write("source", "other")
    code, text = made.run()
    assert (code, "no events are sent, as its client refuses its settings" in text) == (0, True)


def test_the_clients_own_file_in_the_repository_says_where_events_go(toy: Make, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(out), "append": True}
    made = toy(CHAIN, CHAIN_FILES | {"openlineage.yml": json.dumps({"transport": transport})})
    assert made.run()[0] == 0
    assert [read_event(line).eventType for line in out.read_text().splitlines()] == [
        RunState.START,
        RunState.COMPLETE,
    ] * 3
