from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks import large_models
from benchmarks.large_models import MERGES, TINY, Limits, Merge, make_models, measured, table
from merganser.checkpoints.reading import open_checkpoint
from merganser.limits import read_yaml
from tests.gpu import MEMORY, pretended, pretended_gpu


def test_models_have_values_in_the_first_block_and_are_holes_elsewhere(tmp_path: Path) -> None:
    make_models(tmp_path, TINY[0])
    base, one, other = (open_checkpoint(tmp_path / name) for name in ("base", "task0", "task1"))
    for name, spec in TINY[0].specs.items():
        assert base.spec(name) == one.spec(name) == spec
        assert not base.read(name).any()
        if name.startswith("model.layers.0."):
            assert one.read(name).ne(0).float().mean() > 0.99
            assert not torch.equal(one.read(name), other.read(name))
    holes = [name for name in TINY[0].specs if not one.read(name).any()]
    assert 3 < len(holes) < 10


@pretended_gpu
@pytest.mark.parametrize("merge", MERGES, ids=lambda merge: merge.method)
def test_each_merge_runs_on_a_gpu_and_is_held_to_its_limits(
    merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", MEMORY.reset)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: MEMORY.peak)
    make_models(tmp_path, TINY[0])
    with pretended():
        took = measured(TINY[0], merge, "cuda", tmp_path, 1)
    assert took.gpu_bytes > 0
    assert took.read_bytes > 0
    assert (took.flop > 0) == (merge.method == "tsv_m")
    assert not (tmp_path / "out").exists()
    whole = Limits(took.read_bytes / took.seconds, took.read_bytes / took.seconds, took.flop / took.seconds)
    cells = [cell.strip() for cell in table([took], whole).splitlines()[-1].strip("|").split("|")]
    assert cells[7:9] == ["100 %", "100 %"]
    assert cells[10] == ("100 %" if took.flop else "–")


def test_the_whole_script_runs_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Namespace(tiny=True, folder=tmp_path, minutes=10, threads=1, json=tmp_path / "found.json")
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    large_models.main(options)
    assert capsys.readouterr().out.count("| tiny ") == 2 * len(MERGES)
    assert [each["merge"]["method"] for each in read_yaml(tmp_path / "found.json")["took"]] == [
        m.method for m in MERGES
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
