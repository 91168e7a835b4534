"""The declared device, and what is copied to it ahead."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.prepared import copied_ahead
from merganser.models import usable_device
from tests.gpu import every_gpu

Gpu = Callable[[], AbstractContextManager[None]]
CPU = torch.device("cpu")


def batches(count: int) -> Iterator[dict[str, Tensor]]:
    for number in range(count):
        yield {"pixels": torch.full((4, 3), number), "label": torch.arange(4) + number}


def test_a_gpu_that_is_not_there_is_refused_by_the_place_that_declares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_device("cpu", "merge.device") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"^evaluation\.device: cuda, and this stage sees no usable GPU"):
        usable_device("cuda", "evaluation.device")


def test_on_the_cpu_batches_are_given_as_they_are() -> None:
    first = next(batches(1))
    (given,) = copied_ahead(iter([first]), CPU)
    assert given["pixels"] is first["pixels"]


@every_gpu
def test_batches_come_to_a_gpu_in_their_order(gpu: Gpu) -> None:
    expected = list(batches(5))
    with gpu():
        found = list(copied_ahead(batches(5), torch.device("cuda", 0)))
        assert len(found) == 5
        for got, wanted in zip(found, expected, strict=True):
            assert {rows.device.type for rows in got.values()} == {"cuda"}
            assert all(torch.equal(got[name].cpu(), rows) for name, rows in wanted.items())
