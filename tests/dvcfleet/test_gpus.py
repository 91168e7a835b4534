"""No two stages have the same GPU at the same time, wherever they run; the GPUs' names are made up."""

from collections.abc import Iterator

import pytest

from dvcfleet.errors import UserError
from dvcfleet.executors.clusters import refuse_shared_gpus
from tests.dvcfleet.cluster import Cluster, started
from tests.dvcfleet.toy import Make, Toy

GPUS = "3,5"
# A stage that finds its GPU's folder has the GPU at the same time as another stage, and fails.
STAGES = """
stages:
  one:
    foreach: [a, b, c, d, e, f]
    do:
      cmd: >-
        mkdir held-$CUDA_VISIBLE_DEVICES && sleep 0.4 && rmdir held-$CUDA_VISIBLE_DEVICES
        && echo $CUDA_VISIBLE_DEVICES > ${item}.txt
      deps: [source]
      outs: ["${item}.txt"]
      meta: {resources: {gpus: 1}}
  both:
    cmd: 'mkdir held-3 held-5 && sleep 0.2 && rmdir held-3 held-5 && echo $CUDA_VISIBLE_DEVICES > both.txt'
    deps: [source]
    outs: [both.txt]
    meta: {resources: {gpus: 2}}
  none: {cmd: 'echo "[$CUDA_VISIBLE_DEVICES]" > none.txt', deps: [source], outs: [none.txt]}
"""


def check(toy: Toy, **options: object) -> None:
    """Run with more threads than GPUs; each stage saw GPUs of its own, and both were used."""
    code, text = toy.run(**({"workers": 4} | options))
    assert code == 0, text
    assert {toy.read(f"{name}.txt").strip() for name in "abcdef"} == {"3", "5"}
    assert sorted(toy.read("both.txt").strip().split(",")) == ["3", "5"]
    assert toy.read("none.txt") == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["threads", "processes", "ray", "dask"])
def test_on_this_machine(toy: Make, monkeypatch: pytest.MonkeyPatch, runner: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPUS)
    check(toy(STAGES, {"source": ""}), runner=runner)


def test_dask_workers_of_one_machine_with_the_same_gpu_are_refused() -> None:
    refuse_shared_gpus({"tcp://10.0.0.1:1": ("0",), "tcp://10.0.0.1:2": ("1",), "tcp://10.0.0.2:1": ("0",)})
    with pytest.raises(UserError, match=r"^the workers tcp://10\.0\.0\.1:1 and tcp://10\.0\.0\.1:2 .* GPU 1"):
        refuse_shared_gpus({"tcp://10.0.0.1:1": ("0", "1"), "tcp://10.0.0.1:2": ("1",)})


@pytest.fixture(params=["ray", "dask"])
def cluster(request: pytest.FixtureRequest, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with four threads and two GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPUS)
    with started(request.param, prefect_api, threads=4, gpus=2) as cluster:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # those of the run's own machine do not count
        yield cluster


@pytest.mark.slow
def test_on_a_cluster_at_an_address(toy: Make, cluster: Cluster) -> None:
    check(toy(STAGES, {"source": ""}), runner=cluster.runner, address=cluster.address)
