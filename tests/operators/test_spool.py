import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from merganser.errors import InputError
from merganser.operators.spool import Spool

# fmt: off
TENSORS = {
    "matrix": torch.randn(3, 5),
    "turned": torch.randn(3, 5).mT,
    "double": torch.randn(2, 2, dtype=torch.float64),
    "half": torch.randn(7).bfloat16(),
    "number": torch.tensor(3.5),
    "empty": torch.zeros(4, 0, 3),
}
# fmt: on


def test_every_tensor_comes_back_as_it_was_in_any_order() -> None:
    spool = Spool()
    for name, tensor in TENSORS.items():
        spool.put(name, tensor)
    for name in [*reversed(TENSORS), "matrix"]:
        assert spool.get(name).dtype == TENSORS[name].dtype
        assert torch.equal(spool.get(name), TENSORS[name])
    assert "matrix" in spool
    assert "other" not in spool


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_put_one_by_one_come_back_as_one(name: str) -> None:
    spool, parts = Spool(), [TENSORS[name], TENSORS[name] + 1, TENSORS[name] - 1]
    spool.put("before", torch.ones(3))
    spool.put_stack("stack", iter(parts), 3)
    spool.put("after", torch.ones(2))
    assert torch.equal(spool.get("stack"), torch.stack(parts))
    assert torch.equal(spool.get("after"), torch.ones(2))


def test_threads_put_and_get_at_the_same_time() -> None:
    spool = Spool()

    def there_and_back(number: int) -> bool:
        tensor = torch.full((1000 + number,), float(number))
        spool.put(str(number), tensor)
        return torch.equal(spool.get(str(number)), tensor)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(there_and_back, range(100)))


def test_a_tensor_read_back_is_its_readers_own() -> None:
    spool = Spool()
    spool.put("w", torch.ones(3))
    spool.get("w").zero_()
    assert spool.get("w").tolist() == [1.0, 1.0, 1.0]


def test_a_spool_leaves_no_file_and_no_open_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # read TMPDIR again
    before = len(os.listdir("/proc/self/fd"))
    spool = Spool()
    spool.put("w", torch.ones(1000))
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del spool
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_the_users_to_mend() -> None:
    spool = Spool()
    spool._file.close()
    spool._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115 (closed below)
    with pytest.raises(InputError, match="no space left for temporary files: set TMPDIR"):
        spool.put("w", torch.ones(1000))
    assert "w" not in spool
    spool._file.close()
