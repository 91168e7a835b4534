from typing import Any

import pytest

from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources, read_resources
from tests.dvcfleet.toy import Make


def test_a_stage_that_asks_for_nothing_gets_one_thread_one_attempt_and_all_the_time() -> None:
    assert read_resources({}, "meta") == Resources(threads=1, gpus=0, memory_bytes=0, retries=0, timeout_s=None)


def test_all_that_a_meta_can_ask_for_is_read() -> None:
    meta = {"resources": {"gpus": 1, "memory": "8GB", "threads": 2}, "retries": 2, "timeout": "2h", "owner": "me"}
    assert read_resources(meta, "meta") == Resources(2, 1, 8_000_000_000, 2, 7200.0, limits_threads=True)


@pytest.mark.parametrize(
    ("text", "amount"),
    [(1000, 1000), ("1KB", 1000), ("1.5 MB", 1_500_000), ("2GiB", 2 * 2**30), ("1TB", 10**12), ("7B", 7)],
)
def test_memory_has_units_of_a_thousand_and_of_1024(text: Any, amount: int) -> None:
    assert read_resources({"resources": {"memory": text}}, "meta").memory_bytes == amount


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90), (0.5, 0.5), ("90s", 90), ("1.5m", 90), ("2 min", 120), ("1d", 86400)]
)
def test_a_timeout_is_in_seconds_unless_it_says_otherwise(text: Any, seconds: float) -> None:
    assert read_resources({"timeout": text}, "meta").timeout_s == seconds


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"resources": {"threads": 0}}, "meta.resources.threads should be a whole number from 1, got 0"),
        ({"resources": {"threads": True}}, "meta.resources.threads should be a whole number from 1, got True"),
        ({"resources": {"gpus": 0.5}}, "meta.resources.gpus should be a whole number from 0, got 0.5"),
        ({"resources": {"gpu": 1}}, "meta.resources.gpu: unknown; there are threads, gpus and memory"),
        ({"resources": ["gpus"]}, "meta.resources should be a map such as"),
        ({"resources": {"memory": "8 gigs"}}, "meta.resources.memory should be an amount such as 8GB"),
        ({"resources": {"memory": "-1GB"}}, "meta.resources.memory should be an amount such as 8GB"),
        ({"resources": {"memory": 0}}, "meta.resources.memory should be an amount such as 8GB"),
        ({"retries": "many"}, "meta.retries should be a whole number from 0, got 'many'"),
        ({"timeout": "2 weeks"}, "meta.timeout should be an amount such as 2h"),
        ({"timeout": True}, "meta.timeout should be an amount such as 2h"),
        ({"timeout": ".inf"}, "meta.timeout should be an amount such as 2h"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_place(meta: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told.replace("[", r"\[").replace("(", r"\(")):
        read_resources(meta, "meta")


FOREIGN = """
stages:
  a:
    cmd: echo a >> log; cat source > x
    deps: [source]
    outs: [x: {meta: {varies: often}}]
    meta: {resources: {cpu: 4, memory: 8Gi}, timeout: soon, retries: many, restore: [1], place: moon}
  b: {cmd: echo b >> log; cat x > y, deps: [x], outs: [y], meta: [a, list]}
"""


def test_what_a_repository_keeps_in_meta_for_itself_is_ignored_and_a_change_of_meta_runs_nothing(toy: Make) -> None:
    foreign = toy(FOREIGN, {"source": ""})
    assert foreign.run()[0] == 0
    assert foreign.ran() == ["a", "b"]
    foreign.write("dvc.yaml", FOREIGN.replace("meta: [a, list]", "meta: {dvcfleet: {retries: 2}}"))
    assert foreign.run()[0] == 0
    assert foreign.ran() == []


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ("[threads]", "stage a: meta.dvcfleet should be a map such as {resources: ...}, got ['threads']"),
        (
            "{retires: 2}",
            "stage a: meta.dvcfleet.retires: unknown; there are resources, retries, timeout, place, restore, "
            'exclusive; did you mean "retries"?',
        ),
        ("{restore: never}", "stage a: meta.dvcfleet.restore should be true or false, got 'never'"),
        ("{timeout: soon}", "stage a: meta.dvcfleet.timeout should be an amount such as 2h"),
    ],
)
def test_a_mistake_under_the_own_key_is_refused_before_anything_runs(toy: Make, own: str, told: str) -> None:
    wrong = toy(
        f"stages: {{a: {{cmd: echo a >> log, deps: [source], outs: [x], meta: {{dvcfleet: {own}}}}}}}", {"source": ""}
    )
    code, text = wrong.run()
    assert (code, wrong.ran()) == (2, [])
    assert told in text
