import os
import shutil
from pathlib import Path

import pytest
import torch

from merganser.checkpoints.writing import save_tensors
from merganser.code_digest import ROOT, CodeTree
from merganser.inputs import factors, joints
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.factors import VECTORS, FactorSettings, decompose, open_factors, parameter_file_name
from merganser.inputs.layers import LayerFactors
from tests.inputs.test_deltas import extract_all
from tests.small_models import SHAPES, write_models

SETTINGS = FactorSettings(rank_fraction=1.0)


@pytest.fixture
def deltas(tmp_path: Path) -> DeltaFile:
    (tmp_path / "deltas").mkdir()
    extract_all(write_models(tmp_path / "models", tasks=1), tmp_path / "deltas")
    return DeltaFile(tmp_path / "deltas/task0.safetensors")


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def test_the_factors_multiply_out_to_the_delta(deltas: DeltaFile, tmp_path: Path) -> None:
    decompose(deltas, SETTINGS, tmp_path / "svd/task0")
    for layer in open_factors(tmp_path / "svd", ["task0"]):
        if isinstance(layer, LayerFactors):
            (f,) = layer.factors
            torch.testing.assert_close((f.u * f.s) @ f.vh, deltas.matrix(layer.name), rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(layer.deltas[0], deltas.read(layer.name))


def test_a_second_decomposition_does_nothing(deltas: DeltaFile, tmp_path: Path) -> None:
    assert decompose(deltas, SETTINGS, tmp_path / "svd") == (5, 0)
    before = stamps(tmp_path / "svd")
    assert decompose(deltas, SETTINGS, tmp_path / "svd") == (0, 5)
    assert stamps(tmp_path / "svd") == before


def test_matrices_decomposed_at_once_give_the_same_bytes(deltas: DeltaFile, tmp_path: Path) -> None:
    for threads in (1, 3):
        decompose(deltas, SETTINGS, tmp_path / str(threads), threads)
    one, three = ({file.name: file.read_bytes() for file in (tmp_path / n).iterdir()} for n in ("1", "3"))
    assert one == three


def test_a_lost_or_cut_layer_is_the_only_one_decomposed_again(deltas: DeltaFile, tmp_path: Path) -> None:
    decompose(deltas, SETTINGS, tmp_path / "svd")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "svd").iterdir()}
    cut = tmp_path / "svd" / parameter_file_name("proj")
    os.truncate(cut, cut.stat().st_size - 3)
    (tmp_path / "svd/.conv1.weight.safetensors.partial").write_bytes(b"half")
    assert decompose(deltas, SETTINGS, tmp_path / "svd") == (1, 4)
    assert {path.name: path.read_bytes() for path in (tmp_path / "svd").iterdir()} == whole


def test_another_delta_or_setting_is_never_served_the_old_factors(deltas: DeltaFile, tmp_path: Path) -> None:
    decompose(deltas, SETTINGS, tmp_path / "svd")
    assert decompose(deltas, FactorSettings(1.0, "float16"), tmp_path / "svd") == (5, 0)
    changed = {name: deltas.read(name) for name in SHAPES}
    changed["proj"] = changed["proj"] + 1
    save_tensors(tmp_path / "changed", changed, deltas.metadata["merganser"])
    assert decompose(DeltaFile(tmp_path / "changed"), FactorSettings(1.0, "float16"), tmp_path / "svd") == (1, 4)


@pytest.mark.parametrize("names", [factors.CODE, (joints.CODE,)])
def test_an_edited_comment_decomposes_nothing_again_and_a_constant_does(names: tuple[str, ...], tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "merganser", root / "merganser", ignore=shutil.ignore_patterns("__pycache__"))
    before = [CodeTree(root).listing(name) for name in names]
    source = root / "merganser/linalg/svd.py"
    for old, new, same in (("# of the largest", "# times the largest", True), ("GRAM = 1e-4", "GRAM = 1e-3", False)):
        text = source.read_text()
        assert old in text
        source.write_text(text.replace(old, new))
        assert ([CodeTree(root).listing(name) for name in names] == before) is same


def test_parameters_no_longer_there_leave_the_folder(deltas: DeltaFile, tmp_path: Path) -> None:
    decompose(deltas, SETTINGS, tmp_path / "svd")
    (tmp_path / "svd" / parameter_file_name("gone.weight")).write_bytes(b"old")
    decompose(deltas, SETTINGS, tmp_path / "svd")
    expected = {parameter_file_name(name) for name, kind in deltas.kinds.items() if kind == "matrix"} | {VECTORS}
    assert {path.name for path in (tmp_path / "svd").iterdir()} == expected


def test_no_parameter_name_can_leave_the_folder() -> None:
    assert "/" not in parameter_file_name("../../etc/passwd")


def test_the_rank_asked_for_bounds_the_vectors_but_not_the_spectrum(tmp_path: Path) -> None:
    save_tensors(tmp_path / "d", {"w": torch.randn(200, 160)}, '{"kinds": {"w": "matrix"}, "norms": {"w": 1.0}}')
    decompose(DeltaFile(tmp_path / "d"), FactorSettings(0.5), tmp_path / "svd/task0")
    layer = open_factors(tmp_path / "svd", ["task0"]).layer("w")
    assert isinstance(layer, LayerFactors)
    (f,) = layer.factors
    assert (f.u.shape, f.s.shape, f.vh.shape) == ((200, 80), (160,), (80, 160))
