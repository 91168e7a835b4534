"""The order in which stages start, in virtual time: a stage ends when the clock reaches its end, and nothing sleeps."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.durations import Durations
from dvcfleet.scheduling.order import Locality, ReadyStages, followers, paths
from dvcfleet.scheduling.resource_pool import Capacity, Machine, ResourcePool

NODES = tuple(Machine(f"n{number}", f"n{number}", Capacity(8, 1e9, 2)) for number in range(4))


def simulate(
    needs: Mapping[str, Sequence[str]],
    seconds: Mapping[str, float],
    pool: ResourcePool,
    resources: Mapping[str, Resources] | None = None,
    expected: Mapping[str, float] | None = None,
    first: Collection[str] = (),
) -> dict[str, float]:
    """Return when each stage starts; `expected`: what the stages are thought to take, if it is not what they take."""
    now = 0.0
    wanted = {name: (resources or {}).get(name, Resources()) for name in needs}
    durations = Durations(seconds if expected is None else expected)
    ready = ReadyStages(needs, wanted, durations, pool, lambda: now, first=first)
    waiting = {name: set(each) for name, each in needs.items()}
    started: dict[str, float] = {}
    ends: dict[str, float] = {}
    for name in needs:
        if not waiting[name]:
            ready.add(name)
    while ready or ends:
        for name, share in ready.startable():
            pool.give(name, share)
            started[name] = now
            ends[name] = now + seconds[name]
        assert ends, "nothing runs, and nothing can start"
        for capacity in pool.free.values():
            assert capacity.holds(Capacity(0, 0, 0))
        ended = min(ends, key=lambda name: ends[name])
        now = ends.pop(ended)
        pool.take_back(ended)
        ready.note(ended, seconds[ended])
        for name in needs:
            if ended in waiting[name]:
                waiting[name].discard(ended)
                if not waiting[name]:
                    ready.add(name)
    assert started.keys() == needs.keys()
    return started


def test_the_longest_path_and_all_that_wait_are_counted_through_others() -> None:
    needs: dict[str, list[str]] = {"a": [], "b": [], "c": ["a"], "d": ["a", "b"], "e": ["c", "d"]}
    assert paths(needs, {"a": 1, "b": 5, "c": 10, "d": 2, "e": 1}) == {"a": 12, "b": 8, "c": 11, "d": 3, "e": 1}
    assert followers(needs) == {"a": 3, "b": 2, "c": 1, "d": 1, "e": 0}


def test_what_the_longest_path_waits_for_starts_first() -> None:
    needs: dict[str, list[str]] = {"small1": [], "small2": [], "small3": [], "root": [], "long": ["root"]}
    started = simulate(needs, {"small1": 5, "small2": 5, "small3": 5, "root": 1, "long": 14}, ResourcePool(2))
    assert (started["root"], started["long"]) == (0, 1)
    assert max(started["small1"], started["small2"], started["small3"]) == 10


def test_what_is_wanted_starts_first_with_all_that_it_waits_for() -> None:
    needs: dict[str, list[str]] = {"read": [], "learn": ["read"], "merge": ["read"], "long": [], "score": ["merge"]}
    seconds = {"read": 1.0, "learn": 9.0, "merge": 1.0, "long": 99.0, "score": 1.0}
    order = simulate(needs, seconds, ResourcePool(1), first=["score"])
    assert sorted(order, key=lambda name: order[name]) == ["read", "merge", "score", "long", "learn"]


def test_of_equal_paths_what_most_wait_for_starts_first() -> None:
    needs: dict[str, list[str]] = {"one": [], "two": [], "x": ["one"], "y": ["two"], "z": ["two"]}
    assert next(iter(simulate(needs, dict.fromkeys(needs, 1.0), ResourcePool(1)))) == "two"


def test_a_first_run_learns_from_the_first_stage_of_a_kind() -> None:
    # Nothing is known: all paths are as long as their number of stages, until the first of a kind has ended.
    needs: dict[str, list[str]] = {"short@1": [], "long@1": [], "short@2": [], "short@3": [], "long@2": []}
    seconds = {name: 9.0 if name.startswith("long") else 2.0 for name in needs}
    started = simulate(needs, seconds, ResourcePool(1), expected={})
    assert list(started) == ["short@1", "long@1", "long@2", "short@2", "short@3"]


@pytest.mark.parametrize("expected_s", [10.0, 0.1, 1000.0])
def test_a_stage_that_wants_a_whole_node_is_not_starved_by_small_ones(expected_s: float) -> None:
    # All want to start at once and more small ones follow each other: without a reservation both GPUs of a node are
    # never free at the same time. This holds however wrong the expected durations are.
    needs: dict[str, list[str]] = {f"first@{number}": [] for number in range(8)}
    seconds = {f"first@{number}": 5.0 + number for number in range(8)}
    needs |= {"big@1": [], "after": ["big@1"]}
    needs |= {f"small@{number}": [] for number in range(200)}
    seconds |= {"big@1": 20.0, "after": 1.0} | {f"small@{number}": 7.0 + number % 5 for number in range(200)}
    asked = {name: Resources(gpus=1) for name in needs} | {"big@1": Resources(gpus=2), "after": Resources()}
    # The first ones start first: a longer path is said to wait for them.
    expected = dict.fromkeys(needs, expected_s) | {name: 5000.0 for name in needs if name.startswith("first")}
    started = simulate(needs, seconds, ResourcePool(32, machines=NODES), asked, expected)
    assert [started[f"first@{number}"] for number in range(8)] == [0.0] * 8
    assert started["big@1"] <= 12.0 + 11.0  # the first ones, and one small one that was put before it


def test_only_what_ends_in_time_is_put_before_a_large_stage() -> None:
    one = (Machine("n", "n", Capacity(8, 1e9, 2)),)
    needs: dict[str, list[str]] = {
        "running": [],
        "tail": ["running"],
        "big": [],
        "after": ["big"],
        "fits": [],
        "too_long": [],
        "cpu": [],
    }
    seconds = {"running": 100.0, "tail": 300.0, "big": 50.0, "after": 60.0}
    seconds |= {"too_long": 105.0, "fits": 90.0, "cpu": 120.0}
    asked = {name: Resources(gpus=1) for name in ("running", "fits", "too_long")} | {"big": Resources(gpus=2)}
    started = simulate(needs, seconds, ResourcePool(8, machines=one), asked)
    assert {name: started[name] for name in ("running", "fits", "cpu", "big", "too_long")} == {
        "running": 0.0,
        "fits": 0.0,
        "cpu": 0.0,
        "big": 100.0,
        "too_long": 150.0,
    }


def test_stages_of_one_gpu_leave_whole_nodes_to_large_ones() -> None:
    needs: dict[str, list[str]] = {"a": [], "b": [], "big1": [], "big2": [], "big3": []}
    asked = {name: Resources(gpus=2 if name.startswith("big") else 1) for name in needs}
    seconds = {"a": 9.0, "b": 9.0, "big1": 5.0, "big2": 5.0, "big3": 5.0}
    assert set(simulate(needs, seconds, ResourcePool(32, machines=NODES), asked).values()) == {0.0}


def started(inputs: Mapping[str, Mapping[str, float]], held: Mapping[str, Sequence[str]], gpus: int) -> dict[str, str]:
    """Return where stages of so many GPUs start that wait for none, in the order in which they start."""
    locality = Locality(inputs.__getitem__)
    for machine, contents in held.items():
        locality.note(machine, contents)
    pool, needs = ResourcePool(32, machines=NODES), {name: list[str]() for name in inputs}
    asked = {name: Resources(gpus=gpus) for name in inputs}
    ready = ReadyStages(needs, asked, Durations({}), pool, lambda: 0.0, locality=locality)
    for name in needs:
        ready.add(name)
    for name, share in ready.startable():
        pool.give(name, share)
    assert bool(ready) == (len(pool.given) < len(inputs))
    return {name: share.machine for name, share in pool.given.items()}


def test_a_stage_starts_on_the_machine_with_room_that_holds_most_of_its_inputs() -> None:
    inputs = {"a": {"x": 5.0, "y": 9.0}, "b": {"y": 9.0}, "c": {"z": 1.0}}
    places = started(inputs, {"n3": ["x"], "n2": ["y"]}, gpus=2)
    assert places["a"] == "n2"
    assert {places["b"], places["c"]} <= {"n0", "n1", "n3"}  # n2 has no room any more


def test_of_stages_alike_those_start_first_whose_inputs_lie_where_room_is() -> None:
    inputs = {f"s{number}": {f"model{number}": 1.0} for number in range(40)}
    places = started(inputs, {"n1": ["model31", "model17"], "n0": ["model39"]}, gpus=1)
    assert len(places) == 8
    assert {name: places[name] for name in ("s17", "s31", "s39")} == {"s17": "n1", "s31": "n1", "s39": "n0"}


def test_with_fewer_workers_than_threads_a_stage_of_many_threads_gets_its_turn() -> None:
    needs: dict[str, list[str]] = {"one": [], "big": [], "after": ["big"]} | {f"s{n}": [] for n in range(50)}
    seconds = {"one": 50.0, "big": 10.0, "after": 30.0} | {f"s{n}": 2.0 + n % 3 for n in range(50)}
    asked = {"big": Resources(threads=4)}
    started = simulate(needs, seconds, ResourcePool(4, machines=NODES), asked)
    assert started["big"] <= 54.0


def test_twenty_thousand_ready_stages_are_put_in_order_in_no_time() -> None:
    needs: dict[str, list[str]] = {f"s@{number}": [] for number in range(20_000)}
    pool = ResourcePool(32, machines=NODES)
    ready = ReadyStages(needs, {name: Resources(gpus=1) for name in needs}, Durations({}), pool, lambda: 0.0)
    for name in needs:
        ready.add(name)
    for name, share in ready.startable():
        pool.give(name, share)
    assert list(pool.given) == [f"s@{number}" for number in range(8)]
