import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from merganser.linalg.counts import note_kept, tallied
from merganser.workers import BufferPool, map_in_order, one_blas_thread, threads_wanted


def test_results_come_in_the_items_order_whoever_is_done_first() -> None:
    def slow_if_even(number: int) -> int:
        time.sleep(0.02 if number % 2 == 0 else 0)
        return number * number

    for threads in (1, 2, 5):
        assert list(map_in_order(slow_if_even, range(12), threads)) == [n * n for n in range(12)]


def test_as_many_are_in_work_as_there_are_threads_and_no_more() -> None:
    together = threading.Barrier(3, timeout=240)
    inside = []

    def meet(number: int) -> int:
        inside.append(number)
        together.wait()
        return len({*inside})

    assert max(map_in_order(meet, range(9), 3)) >= 3
    assert len(inside) == 9


def test_what_does_not_fit_the_free_memory_is_not_in_work_together() -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def work(_: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005)
        with lock:
            at_once -= 1

    list(map_in_order(work, range(6), 3, weigh=lambda _: 1 << 60))
    assert most == 1


def test_an_error_ends_it_and_what_has_not_begun_never_begins() -> None:
    begun = []

    def fail(number: int) -> None:
        begun.append(number)
        raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item 0"):
        list(map_in_order(fail, range(100), 2))
    assert len(begun) < 50


def test_threads_compute_without_gradients_where_the_caller_does() -> None:
    with torch.inference_mode():
        assert all(map_in_order(lambda _: torch.is_inference_mode_enabled(), range(4), 2))
    assert not any(map_in_order(lambda _: torch.is_inference_mode_enabled(), range(4), 2))


def test_every_blas_has_one_thread_inside_the_block_and_its_own_number_after() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))
    before = torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info()]
    with one_blas_thread():
        assert torch.get_num_threads() == 1
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
    assert (torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info()]) == before


def test_the_number_of_threads_is_the_environments_or_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERGANSER_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_wanted() == 3
    monkeypatch.setenv("MERGANSER_THREADS", "7")
    assert threads_wanted() == 7
    monkeypatch.setenv("MERGANSER_THREADS", "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert threads_wanted() >= 1


def test_memory_is_used_again_when_nobody_holds_the_tensor_or_a_view_of_it() -> None:
    buffers = BufferPool()
    large = buffers.empty(4, 1000)
    place, view = large.data_ptr(), large[1:2]
    del large
    other = buffers.empty(10)
    assert other.data_ptr() != place
    del view
    again = buffers.empty(3, 5)
    assert again.data_ptr() == place
    assert again.shape == (3, 5)
    del other, again
    assert buffers.empty(5, 2000).shape == (5, 2000)
    assert buffers.empty(0).numel() == 0


def test_no_blas_of_more_threads_is_loaded_while_one_is_to_be_used() -> None:
    program = """
import torch
from threadpoolctl import threadpool_info
from merganser.merging import driver
with driver.one_blas_thread():
    from merganser.linalg import lapack
    from merganser.linalg import loops
    lapack.eigh_top_(torch.eye(3, dtype=torch.float64), 3)
    print({pool["num_threads"] for pool in threadpool_info()})
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "{1}"


def test_what_the_threads_keep_is_counted_where_they_were_started() -> None:
    with tallied() as tally:
        list(map_in_order(lambda kept: note_kept(kept, 10), range(4), threads=2))
    assert sorted(tally) == [(kept, 10) for kept in range(4)]
