import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dvcfleet.errors import UserError
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy


@pytest.fixture(scope="module")
def ran_once(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Toy:
    """The chain of three stages, run."""
    repository = Toy(tmp_path_factory.mktemp("ran") / "toy", CHAIN, CHAIN_FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)
        code, text = repository.run()
    assert code == 0, text
    return repository


@pytest.fixture
def done(ran_once: Toy, toy: Make) -> Toy:
    """A copy of the chain of three stages, run."""
    return toy.copy_of(ran_once)


def test_a_fresh_repository_has_new_stages(toy: Make) -> None:
    fresh = toy(CHAIN, CHAIN_FILES)
    assert fresh.states() == {"cut": "stale", "turn": "stale", "end": "stale"}
    assert fresh.reasons("end") == ["new stage"]


def test_a_run_brings_all_stages_up_to_date(done: Toy) -> None:
    assert done.states() == {"cut": "up to date", "turn": "up to date", "end": "up to date"}


def test_a_changed_input_makes_its_reader_stale_and_the_rest_wait(done: Toy) -> None:
    done.write("source", "xyz")
    assert done.states() == {"cut": "stale", "turn": "waiting", "end": "waiting"}
    assert done.reasons("cut") == ["dep source changed"]
    assert done.reasons("turn") == ["reads from cut"]


def test_a_changed_parameter_is_named_down_to_its_leaf(toy: Make) -> None:
    whole = toy(CHAIN.replace("turn.times", "turn"), CHAIN_FILES)
    assert whole.run()[0] == 0
    whole.write("params.yaml", "turn: {times: 1, more: {deep: 2}, extra: 3}\n")
    assert whole.reasons("turn") == ["params turn.more.deep changed", "params turn.extra new"]
    whole.write("params.yaml", "turn: {more: {deep: 1}}\n")
    assert whole.reasons("turn") == ["params turn.times removed"]


def test_a_changed_command_is_a_reason(done: Toy) -> None:
    done.write("dvc.yaml", CHAIN.replace("head -c 3", "head -c 2"))
    assert done.reasons("cut") == ["command changed"]


def test_a_lost_output_can_be_restored_and_its_readers_need_nothing(done: Toy) -> None:
    (done.path / "cut.txt").unlink()
    (done.path / "end.txt").unlink()
    assert done.states() == {"cut": "restorable", "turn": "up to date", "end": "restorable"}
    assert done.reasons("cut") == ["output cut.txt missing"]


def test_an_output_lost_from_the_cache_too_must_be_made_again(done: Toy) -> None:
    for file in (done.path / ".dvc/cache/files").rglob("*"):
        if file.is_file() and file.read_text() == "abc":
            file.unlink()
    assert done.reasons("cut") == ["output cut.txt not in the cache"]
    assert done.states()["cut"] == "stale"


def test_going_back_to_an_earlier_input_can_be_restored_from_the_run_cache(done: Toy) -> None:
    done.write("source", "xyz")
    assert done.run()[0] == 0
    done.write("source", "abcdef")
    assert done.states()["cut"] == "restorable"
    assert done.reasons("cut") == ["dep source changed"]


def test_an_input_never_seen_before_is_not_taken_from_the_cache(done: Toy) -> None:
    # DVC's own dry restore would offer the outputs of dvc.lock for it.
    done.write("source", "new")
    assert done.states()["cut"] == "stale"


def test_a_missing_input_that_no_stage_makes_blocks_its_readers(done: Toy) -> None:
    (done.path / "source").unlink()
    assert done.states() == {"cut": "blocked", "turn": "blocked", "end": "blocked"}
    assert done.reasons("cut") == ["dep source missing, and no stage makes it"]
    assert done.reasons("turn") == ["reads from cut, which is blocked"]


def test_force_makes_every_stage_stale(done: Toy) -> None:
    assert {stage.reasons for stage in done.plan(force=True).planned.values()} == {("forced",)}


def test_targets_bring_what_they_read_from_only(done: Toy) -> None:
    assert list(done.plan(["turn"]).planned) == ["cut", "turn"]


def test_an_unknown_target_is_the_users_mistake(done: Toy) -> None:
    with pytest.raises(UserError, match="nope"):
        done.plan(["nope"])


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo])
@pytest.mark.parametrize("place", ["source", "turned/text"])
def test_a_device_or_a_pipe_is_refused_and_not_read(done: Toy, make: Callable[[Path], None], place: str) -> None:
    path = done.path / place
    path.unlink()
    make(path)
    with pytest.raises(UserError, match=f"{place}: not a plain file"):
        done.plan()
    assert done.run()[0] == 2


@pytest.mark.parametrize("name", ["ledger.jsonl", "lock-order.json"])
def test_no_device_is_read_as_a_file_of_the_engines_own(done: Toy, name: str) -> None:
    (done.path / ".dvcfleet" / name).unlink(missing_ok=True)
    (done.path / ".dvcfleet" / name).symlink_to("/dev/zero")
    assert done.settled()


def test_a_broken_dvc_yaml_is_the_users_mistake(done: Toy) -> None:
    done.write("dvc.yaml", "stages: [")
    with pytest.raises(UserError, match=r"dvc\.yaml"):
        done.plan()


@pytest.mark.parametrize("name", ["dvc.yaml", "dvc.lock"])
def test_a_file_that_is_nested_too_deeply_is_named(done: Toy, name: str) -> None:
    depth = 2 * sys.getrecursionlimit() // 3  # a level takes DVC's reader two calls, and far more take it seconds
    done.write(name, f"stages: {'[' * depth}{']' * depth}\n")
    with pytest.raises(UserError, match=f"{name}.*nested too deeply"):
        done.plan()


def test_a_folder_without_dvc_is_the_users_mistake(toy: Make, tmp_path_factory: pytest.TempPathFactory) -> None:
    from dvcfleet.planning.plan import plan

    with pytest.raises(UserError, match="not in a DVC repository"):
        plan(tmp_path_factory.mktemp("plain"))


def test_a_stage_without_inputs_and_outputs_is_always_to_run(toy: Make) -> None:
    always = toy("stages: {hello: {cmd: echo hello >> log}}", {})
    assert always.run()[0] == 0
    assert always.reasons("hello") == ["always changed"]


def test_the_plan_is_plain_data_with_stable_keys(done: Toy) -> None:
    done.write("source", "xyz")
    data = json.loads(json.dumps(done.plan().as_json()))
    assert list(data) == ["stages", "orphans", "counts"]
    assert data["stages"][0] == {"name": "cut", "state": "stale", "reasons": ["dep source changed"], "needs": []}
    assert data["counts"] == {"up to date": 0, "restorable": 0, "stale": 1, "waiting": 2, "blocked": 0}


def test_a_plan_changes_nothing(done: Toy) -> None:
    done.write("source", "xyz")
    before = done.read("dvc.lock")
    done.plan()
    assert done.read("dvc.lock") == before
    assert done.read("cut.txt") == "abc"
