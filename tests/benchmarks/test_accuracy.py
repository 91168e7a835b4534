from pathlib import Path

import torch

from benchmarks import accuracy
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.factors import FactorSettings, decompose


def test_the_sizes_computed_are_those_written(tmp_path: Path) -> None:
    header = '{"kinds": {"w": "matrix", "b": "vector"}, "norms": {"w": 1.0, "b": 1.0}}'
    save_tensors(tmp_path / "d", {"w": torch.randn(200, 160), "b": torch.randn(7)}, header)
    deltas = DeltaFile(tmp_path / "d")
    for share, dtype in ((0.1, "float32"), (0.5, "bfloat16")):
        decompose(deltas, FactorSettings(share, dtype), tmp_path / dtype)
        written = sum(path.stat().st_size for path in (tmp_path / dtype).iterdir())
        assert 0 < written - accuracy.computed(deltas, share, dtype) < 1500  # two headers


def test_ours_is_closer_to_the_formula_than_the_plain_program() -> None:
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(4, 60, 40, generator=generator)
    for name in accuracy.PLAIN:
        plain, ours, *_ = accuracy.errors_of(name, deltas)
        assert ours < 1e-6
        assert ours < plain
