"""No two stages have the same GPU at the same time, wherever they run; the GPUs' names are made up."""

import pytest

from dvcfleet.errors import UserError
from dvcfleet.scheduling.resource_pool import refuse_wrong_gpus
from dvcfleet.worker.gpus import gpus_here
from tests.dvcfleet.toy import Make, Toy

GPUS = ("3", "5")
# A stage that finds its GPU's folder has the GPU at the same time as another stage, and fails.
GPU_STAGES = """
stages:
  one:
    foreach: [a, b, c, d]
    do:
      cmd: >-
        mkdir held-$CUDA_VISIBLE_DEVICES && sleep 0.4 && rmdir held-$CUDA_VISIBLE_DEVICES
        && echo $CUDA_VISIBLE_DEVICES > ${item}.txt
      deps: [source]
      outs: ["${item}.txt"]
      meta: {dvcfleet: {resources: {gpus: 1}}}
  both:
    cmd: 'mkdir held-3 held-5 && sleep 0.2 && rmdir held-3 held-5 && echo $CUDA_VISIBLE_DEVICES > both.txt'
    deps: [source]
    outs: [both.txt]
    meta: {dvcfleet: {resources: {gpus: 2}}}
  none: {cmd: 'echo "[$CUDA_VISIBLE_DEVICES]" > none.txt', deps: [source], outs: [none.txt]}
"""


def check_gpus(toy: Toy, **options: object) -> None:
    """Run with more threads than GPUs; each stage saw GPUs of its own, and all were used."""
    code, text = toy.run(**({"workers": 4} | options))
    assert code == 0, text
    assert {toy.read(f"{name}.txt").strip() for name in "abcd"} == set(GPUS)
    assert sorted(toy.read("both.txt").strip().split(",")) == sorted(GPUS)
    assert toy.read("none.txt") == "[]\n"


# Every day in threads (test_run.py), and on a cluster at an address (test_clusters.py).
@pytest.mark.drill
@pytest.mark.parametrize("runner", ["processes", "ray", "dask"])
def test_gpu_stages_on_this_machine_have_gpus_of_their_own(
    toy: Make, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(GPUS))
    check_gpus(toy(GPU_STAGES, {"source": ""}), runner=runner)


def test_dask_workers_of_one_machine_with_the_same_gpu_are_refused() -> None:
    refuse_wrong_gpus({"tcp://10.0.0.1:1": ("0",), "tcp://10.0.0.1:2": ("1",), "tcp://10.0.0.2:1": ("0",)}, {})
    with pytest.raises(UserError, match=r"^the workers tcp://10\.0\.0\.1:1 and tcp://10\.0\.0\.1:2 .* GPU 1"):
        refuse_wrong_gpus({"tcp://10.0.0.1:1": ("0", "1"), "tcp://10.0.0.1:2": ("1",)}, {})


def test_dask_workers_that_declare_more_gpus_than_they_see_are_refused() -> None:
    seen = {"tcp://10.0.0.1:1": ("0", "1"), "tcp://10.0.0.2:1": ()}
    refuse_wrong_gpus(seen, {"tcp://10.0.0.1:1": 1})
    with pytest.raises(UserError, match=r"^the worker tcp://10\.0\.0\.2:1 declares 1 GPUs, and sees 0; start it with"):
        refuse_wrong_gpus(seen, {"tcp://10.0.0.1:1": 2, "tcp://10.0.0.2:1": 1})


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        ("", ()),
        ("-1", ()),
        ("3, 5", GPUS),
        ("GPU-ab,GPU-cd", ("GPU-ab", "GPU-cd")),
        ("3,-1,5", ("3",)),
        ("3,,5", ("3",)),
        ("3,5,3", ()),
    ],
)
def test_a_process_sees_the_gpus_that_cuda_sees(
    monkeypatch: pytest.MonkeyPatch, named: str, seen: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus_here() == seen
