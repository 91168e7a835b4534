"""The Prefect side of a run."""

import pytest

from dvcfleet.console import rows
from dvcfleet.messages import Ending, Result


def test_a_flow_that_breaks_off_does_not_pass_for_one_that_ended(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    from prefect.task_runners import ThreadPoolTaskRunner

    from dvcfleet.prefect_adapter.flow import run_flow

    def break_off() -> dict[str, Ending]:
        raise ZeroDivisionError("in the loop")

    with pytest.raises(ZeroDivisionError, match="in the loop"):
        run_flow("broken-off", ThreadPoolTaskRunner(max_workers=1), break_off, rows)


def test_a_failed_stage_is_no_failure_of_the_flow_itself(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    from prefect.task_runners import ThreadPoolTaskRunner

    from dvcfleet.prefect_adapter.flow import run_flow

    run_flow(
        "failed", ThreadPoolTaskRunner(max_workers=1), lambda: {"a": Ending("a", Result.FAILED, "exit code 1")}, rows
    )
