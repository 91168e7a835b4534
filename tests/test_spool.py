import os
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
