"""The Prefect side of a run."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
