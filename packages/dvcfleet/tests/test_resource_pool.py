import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import ResourcePool
from dvcfleet.terminal import machine_limits
from dvcfleet.terminal.machine_limits import available_memory, usable_cpus, usable_memory
from dvcfleet.worker.gpus import gpus_here, own_gpus

CACHED = "anon 700000\nactive_file 50000\ninactive_file 150000\ntotal_active_file 50000\ntotal_inactive_file 150000"


def give(pool: ResourcePool, name: str, resources: Resources) -> tuple[str, ...] | None:
    """Give a stage what it asks for; return its GPUs, None while it has to wait."""
    share = pool.offer(resources)
    if share is None:
        return None
    pool.give(name, share)
    return share.gpus


def test_no_gpu_has_two_stages_and_a_free_one_is_given_again() -> None:
    pool = ResourcePool(threads=8, gpus=("0", "1", "2"))
    assert give(pool, "a", Resources(gpus=2)) == ("0", "1")
    assert give(pool, "b", Resources(gpus=2)) is None
    assert give(pool, "c", Resources(gpus=1)) == ("2",)
    assert give(pool, "d", Resources()) == ()
    pool.take_back("a")
    assert give(pool, "b", Resources(gpus=2)) == ("0", "1")


def test_a_stage_waits_until_there_is_memory_for_it() -> None:
    pool = ResourcePool(threads=8, memory_bytes=10)
    assert give(pool, "a", Resources(memory_bytes=6)) == ()
    assert give(pool, "b", Resources(memory_bytes=6)) is None
    assert give(pool, "c", Resources(memory_bytes=4)) == ()
    pool.take_back("a")
    assert give(pool, "b", Resources(memory_bytes=6)) == ()


def test_a_stage_gets_no_more_threads_than_there_are() -> None:
    pool = ResourcePool(threads=2)
    share = pool.offer(Resources(threads=5))
    assert share
    assert share.threads == 2


def test_more_than_there_is_is_refused_by_name() -> None:
    pool = ResourcePool(threads=2, memory_bytes=8e9, gpus=("0",))
    pool.refuse_too_much("a", Resources(threads=5, gpus=1, memory_bytes=8_000_000_000))
    with pytest.raises(UserError, match=r"^stage a: asks for 2 GPUs; this machine has 1$"):
        pool.refuse_too_much("a", Resources(gpus=2))
    with pytest.raises(UserError, match=r"^stage a: asks for 9 GB of memory; this machine has 8 GB$"):
        pool.refuse_too_much("a", Resources(memory_bytes=9_000_000_000))


@pytest.mark.parametrize(("named", "gpus"), [("", ()), ("-1", ()), ("0,1", ("0", "1")), ("GPU-8f, 3", ("GPU-8f", "3"))])
def test_the_gpus_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch, named: str, gpus: tuple[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus_here() == gpus


def test_without_limits_the_machine_is_what_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_limits, "_GROUPS", tmp_path / "none")
    assert usable_cpus() == len(os.sched_getaffinity(0))
    assert usable_memory() == psutil.virtual_memory().total
    assert 0 < available_memory() < usable_memory()


GROUPS = {  # as the kernel shows a job's: a container's limit in version 2, a step within a limited job in version 1
    "version 2": (
        "0::/",
        {"cpu.max": "150000 100000", "memory.max": "1000000", "memory.current": "900000", "memory.stat": CACHED},
    ),
    "version 1": (
        "9:memory:/job/step\n4:cpu,cpuacct:/job/step\n0::/",
        {
            "cpu/job/cpu.cfs_quota_us": "150000",
            "cpu/job/cpu.cfs_period_us": "100000",
            "cpu/job/step/cpu.cfs_quota_us": "-1",
            "cpu/job/step/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": "1000000",
            "memory/job/memory.usage_in_bytes": "900000",
            "memory/job/memory.stat": CACHED,
            "memory/job/step/memory.limit_in_bytes": str(2**63 - 4096),
            "memory/job/step/memory.usage_in_bytes": "900000",
        },
    ),
}


@pytest.mark.parametrize(("groups", "files"), GROUPS.values(), ids=GROUPS)
def test_the_limits_of_a_container_or_a_job_are_those_of_its_processes(
    groups: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_limits, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine_limits, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    (tmp_path / "groups").write_text(f"{groups}\n")
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(f"{text}\n")
    assert (usable_cpus(), usable_memory(), available_memory()) == (2, 1_000_000, 300_000)


def test_stages_of_one_worker_of_a_cluster_share_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with own_gpus("a", 1) as first, own_gpus("b", 1) as second, own_gpus("c", 0) as none:
        assert [first, second, none] == [("4",), ("5",), ()]
        with pytest.raises(UserError, match="stage d: asks for 1 GPUs"), own_gpus("d", 1):
            pass
    with own_gpus("d", 2) as both:
        assert both == ("4", "5")
