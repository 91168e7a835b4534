"""When it is said that stages wait for a node."""

from collections.abc import Sequence

from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import Capacity, Machine
from dvcfleet.scheduling.retries import LOOK_S, SAY_S, NodeWatch

GPU_NODE, CPU_NODE = (Machine(host, host, Capacity(2, 4e9, gpus)) for host, gpus in (("gpu", 1), ("cpu", 0)))
ASKED = {"a": Resources(gpus=1), "b": Resources(), "c": Resources(gpus=1)}


class Cluster:
    """Machines that come and go, a clock, and what was told of them."""

    def __init__(self, *machines: Machine) -> None:
        self.machines: Sequence[Machine] | None = machines
        self.time = 0.0
        self.told: list[tuple[list[str], str]] = []
        self.watch = NodeWatch(lambda: self.machines, lambda *told: self.told.append(told), lambda: self.time)

    def pass_by(self, seconds: float) -> list[tuple[list[str], str]]:
        """Let time pass, with a look each second; return what was told meanwhile."""
        self.told = []
        for _ in range(round(seconds)):
            self.time += 1
            self.watch.look(ASKED)
        return self.told


def test_what_no_node_can_run_any_more_is_said_once_a_minute_until_one_joins() -> None:
    cluster = Cluster(GPU_NODE, CPU_NODE)
    assert set(map(str, cluster.pass_by(2 * LOOK_S))) == {"([], '')"}
    cluster.machines = [CPU_NODE]
    waits = (
        "waiting for a node to join: a asks for 1 threads, 1 GPUs, and no node has all "
        "(cpu has 2 threads, 0 GPUs, 4 GB); 1 more wait so"
    )
    told = cluster.pass_by(2 * SAY_S)
    assert [names for names, _ in told] == [["a", "c"]] * round(2 * SAY_S / LOOK_S)
    assert [line for _, line in told if line] == [waits] * 2
    cluster.machines = []
    assert "b" in cluster.pass_by(LOOK_S)[0][0]
    cluster.machines = [CPU_NODE, GPU_NODE]
    assert cluster.pass_by(LOOK_S) == [([], "")]
    cluster.machines = [CPU_NODE]  # lost again: that is said at once
    assert [line for _, line in cluster.pass_by(LOOK_S)] == [waits]


def test_nothing_is_said_where_no_machines_are_counted() -> None:
    cluster = Cluster()
    cluster.machines = None
    assert cluster.pass_by(SAY_S) == []
