"""The Prefect side of a run."""

import asyncio
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dvcfleet.fast_paths import replaced
from dvcfleet.messages import Ending, Result


@pytest.fixture
def run_flow(prefect_api: str) -> Iterator[Callable[..., Any]]:
    """Give the flow, on the shared server whatever Prefect read from the environment when it was imported."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from dvcfleet.prefect_adapter.flow import run_flow

    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with temporary_settings({PREFECT_API_URL: prefect_api, PREFECT_API_AUTH_STRING: secret}):
        yield run_flow


def test_a_flow_that_breaks_off_does_not_pass_for_one_that_ended(run_flow: Callable[..., Any]) -> None:
    from prefect.task_runners import ThreadPoolTaskRunner

    def break_off() -> dict[str, Ending]:
        raise ZeroDivisionError("in the loop")

    with pytest.raises(ZeroDivisionError, match="in the loop"):
        run_flow("broken-off", ThreadPoolTaskRunner(max_workers=1), break_off, {})


def test_prefect_gets_the_beginning_and_the_end_of_a_stages_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from dvcfleet.prefect_adapter.flow import StageLog

    monkeypatch.setattr("dvcfleet.prefect_adapter.flow.LOG_LIMIT", 10)
    heard: list[str] = []
    log = StageLog(heard.append, ".dvcfleet/logs/a.log")
    for text in ("one\n", "two\nthree\n", "four\n"):
        log.write(text)
    log.close(("three", "four"))
    said = "... 9 characters more: all are in .dvcfleet/logs/a.log where it ran; the last lines are:"
    assert heard == ["one", "two\nth", said, "three\nfour"]


def test_a_failed_stage_is_no_failure_of_the_flow_itself(run_flow: Callable[..., Any]) -> None:
    from prefect.task_runners import ThreadPoolTaskRunner

    endings = {"a": Ending("a", Result.FAILED, "exit code 1")}
    run_flow("failed", ThreadPoolTaskRunner(max_workers=1), lambda: endings, {})


class Client:
    """Prefect's client, of a server that is gone from some time on; it notes what it sent."""

    def __init__(self) -> None:
        self.sent, self.is_gone = list[bytes](), False

    async def request(self, method: str, path: str, content: bytes) -> None:
        if self.is_gone:
            raise ConnectionError(path)
        self.sent.append(content)

    async def create_logs(self, logs: list[Any]) -> None:
        await self.request("POST", "/logs/", repr(logs).encode())


async def handle_as_dictionaries(self: Any, items: list[Any]) -> None:  # Prefect 3.8
    await self._client.create_logs(items)


async def handle_as_json(self: Any, items: list[Any]) -> None:  # Prefect 3.9
    await self._client.request("POST", "/logs/", content=b",".join(items))


@pytest.mark.parametrize(
    ("handle", "items"), [(handle_as_dictionaries, [{"message": "one"}]), (handle_as_json, [b'{"message": "one"}'])]
)
def test_logs_reach_the_server_however_prefect_sends_them_and_a_lost_batch_is_told(
    monkeypatch: pytest.MonkeyPatch, handle: Callable[..., Any], items: list[Any]
) -> None:
    from prefect.logging.handlers import APILogWorker

    from dvcfleet.prefect_adapter import internals

    monkeypatch.setattr(APILogWorker, "_handle_batch", handle)
    internals.count_lost_logs()
    client = Client()
    worker = SimpleNamespace(_client=client)
    asyncio.run(APILogWorker._handle_batch(worker, items))  # type: ignore[arg-type]
    assert b"one" in client.sent[0]
    assert internals.flush()
    client.is_gone = True
    asyncio.run(APILogWorker._handle_batch(worker, items))  # type: ignore[arg-type]
    assert len(client.sent) == 1
    assert not internals.flush()
    assert internals.flush()


def test_what_a_class_inherits_is_replaced_and_inherited_again() -> None:
    class Heir(Client):
        pass

    with replaced(Heir, "request", "another"):
        assert Heir.request == "another"
    assert "request" not in vars(Heir)
    assert Heir.request is Client.request
