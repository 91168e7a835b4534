import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.deltas import DeltaFile, Deltas, open_deltas
from merganser.inputs.factors import parameter_file_name
from merganser.inputs.joints import BASES, DELTAS, join, link_deltas, open_joint
from merganser.inputs.layers import LayerDeltas, LayerLowRank, LayerSource, Side, weighted
from merganser.merging.driver import merge_layers
from merganser.merging.method import Method
from tests.inputs.test_deltas import extract_all
from tests.laws.checkpoints import SEED, Models
from tests.laws.checkpoints import write_models as write_law_models
from tests.laws.test_references import agree
from tests.laws.test_registry_properties import choices, methods_that
from tests.linalg.test_svd import low_rank_plus_noise, with_spectrum
from tests.small_models import write_models
from tests.support import python

TASKS = ["task0", "task1", "task2"]
MATRICES = {"blocks.0.attn.in_proj_weight", "blocks.0.mlp.c_fc.weight", "blocks.0.row.weight", "conv1.weight", "proj"}
READERS: dict[str, tuple[str, Side, dict[str, Any]]] = {
    "drm_h": ("drm_h", "rows", {}),
    "drm_v": ("drm_v", "columns", {}),
    "knots": ("knots", "rows", {}),
    "knots_dare": ("knots", "rows", {"inner": "dare", "scaling": 0.4}),
}
ROOT = Path(__file__).parents[2]
# Killed when so many files are whole and the next has not yet its name: from without, the moment could not be chosen.
JOIN = """
import sys
from pathlib import Path
from merganser.inputs.deltas import open_deltas
from merganser.inputs.joints import join
from tests.tasks.killing import run_until

count, deltas, bases, *tasks = sys.argv[1:]
run_until(lambda tasks: join(open_deltas(Path(deltas), tasks), "rows", Path(bases), 2), tasks, times=int(count))
"""


@pytest.fixture
def deltas(tmp_path: Path) -> Deltas:
    """Extract the deltas of three small models."""
    (tmp_path / "deltas").mkdir()
    extract_all(write_models(tmp_path / "models"), tmp_path / "deltas")
    return open_deltas(tmp_path / "deltas", TASKS)


def joined(deltas: Deltas, side: Side, folder: Path) -> Path:
    """Make the folder of a joint of deltas."""
    fresh = folder / DELTAS
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    link_deltas({task: file.path for task, file in deltas.files.items()}, fresh)
    join(deltas, side, folder / BASES)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_a_basis_with_what_the_tasks_are_in_it_gives_their_deltas_back(
    deltas: Deltas, side: Side, tmp_path: Path
) -> None:
    for layer in open_joint(joined(deltas, side, tmp_path / "joint"), TASKS):
        assert isinstance(layer, LayerDeltas)
        if layer.kind == "vector":
            assert layer.basis is None
            continue
        assert layer.basis is not None
        u, s = layer.basis
        together = torch.cat(list((layer.deltas if side == "rows" else layer.deltas.mT).double()), 1)
        torch.testing.assert_close(u.mT @ u, torch.eye(len(s), dtype=torch.float64), rtol=0, atol=1e-7)
        torch.testing.assert_close(u @ (u.mT @ together), together, rtol=0, atol=1e-8)
        torch.testing.assert_close((u.mT @ together).norm(dim=1), s, rtol=1e-7, atol=0)


@pytest.mark.parametrize("entry", READERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_merge_from_a_joint_has_the_bytes_of_a_merge_from_deltas(entry: str, threads: int, tmp_path: Path) -> None:
    """Whatever way the decomposition of a layer takes."""
    name, side, values = READERS[entry]
    method = registry.get(name)
    layers = layers_of_every_kind()
    deltas = Deltas({task: write_deltas(tmp_path / "deltas", task, layers) for task in layers})
    save_tensors(tmp_path / "base.safetensors", layers["task0"])
    base, filled = open_checkpoint(tmp_path / "base.safetensors"), method.validate(name, values)
    sources = {"from deltas": deltas, "from joint": open_joint(joined(deltas, side, tmp_path / "joint"), TASKS)}
    for out, source in sources.items():
        (tmp_path / out).mkdir()
        merge_layers(method, filled, source, base, tmp_path / out, torch.device("cpu"), threads)
    assert contents(tmp_path / "from joint") == contents(tmp_path / "from deltas")


def layers_of_every_kind() -> dict[str, dict[str, Tensor]]:
    """Make the deltas of three tasks: wide and tall, ill-conditioned, of low rank, unchanged by one task, by all."""
    ill = with_spectrum(torch.logspace(0, -4.7, 20), (20, 180)).unflatten(1, (3, 60)).unbind(1)
    low = [with_spectrum(torch.tensor([1.0, 0.3]), (60, 50), seed) for seed in range(3)]
    return {
        task: {
            "bias": low[t][0],
            "ill": ill[t],
            "low": low[t],
            "none": torch.zeros(9, 7),
            "one": low_rank_plus_noise((30, 40), 7) * (t == 1),
            "tall": low_rank_plus_noise((200, 30), t),
            "wide": low_rank_plus_noise((130, 200), t),
        }
        for t, task in enumerate(TASKS)
    }


def write_deltas(folder: Path, task: str, layers: dict[str, dict[str, Tensor]]) -> DeltaFile:
    """Write a task's deltas as extraction does."""
    folder.mkdir(exist_ok=True)
    kinds = {name: "matrix" if delta.ndim == 2 else "vector" for name, delta in layers[task].items()}
    index = {"kinds": kinds, "norms": dict.fromkeys(kinds, 1.0)}
    save_tensors(folder / f"{task}.safetensors", layers[task], json.dumps(index))
    return DeltaFile(folder / f"{task}.safetensors")


@pytest.mark.parametrize("entry", READERS)
def test_a_merge_takes_the_basis_that_it_is_given(entry: str, deltas: Deltas, tmp_path: Path) -> None:
    """A basis turned upside down gives another merge: it was not computed again."""
    name, side, values = READERS[entry]
    method = registry.get(name)
    source = open_joint(joined(deltas, side, tmp_path / "joint"), TASKS)
    filled = method.validate(name, values)
    found = []
    for turned in (False, True):
        if turned:
            for path in (tmp_path / "joint" / BASES).iterdir():
                file = SafetensorsFile(path)
                tensors = {part: file.read(part) for part in file.names}
                save_tensors(path, tensors | {"ut": tensors["ut"].flip(1)})
        found.append(method.bind(filled, source)(source.layer("blocks.0.mlp.c_fc.weight")))
    assert not torch.equal(*found)


@dataclass(frozen=True)
class JoinedModels(Models):
    """The same models, read as a joint."""

    def source(self, method: Method, values: Mapping[str, Any] | None = None) -> LayerSource:
        assert method.joint
        deltas = open_deltas(self.folder / "deltas", list(self.tasks))
        return open_joint(joined(deltas, method.joint, self.folder / "joint"), list(self.tasks), SEED)


@methods_that(lambda method: method.joint is not None)
def test_a_merge_from_a_joint_computes_its_formula(name: str, tmp_path: Path) -> None:
    models = write_law_models(tmp_path, torch.float32, 8)
    for values in choices(name):
        agree(name, values, JoinedModels(models.folder, models.tasks))


def test_a_second_join_does_nothing(deltas: Deltas, tmp_path: Path) -> None:
    assert join(deltas, "rows", tmp_path / "bases") == (5, 0)
    before = {path.name: path.stat().st_ino for path in (tmp_path / "bases").iterdir()}
    assert before.keys() == {parameter_file_name(name) for name in MATRICES}
    assert join(deltas, "rows", tmp_path / "bases", threads=2) == (0, 5)
    assert {path.name: path.stat().st_ino for path in (tmp_path / "bases").iterdir()} == before


def test_a_lost_or_cut_layer_is_the_only_one_decomposed_again(deltas: Deltas, tmp_path: Path) -> None:
    join(deltas, "rows", tmp_path / "bases")
    whole = contents(tmp_path / "bases")
    cut = tmp_path / "bases" / parameter_file_name("proj")
    os.truncate(cut, cut.stat().st_size - 3)
    (tmp_path / "bases/.conv1.weight.safetensors.partial").write_bytes(b"half")
    (tmp_path / "bases" / parameter_file_name("gone.weight")).write_bytes(b"old")
    assert join(deltas, "rows", tmp_path / "bases") == (1, 4)
    assert contents(tmp_path / "bases") == whole


def test_another_task_delta_or_side_is_never_served_the_old_basis(deltas: Deltas, tmp_path: Path) -> None:
    join(deltas, "rows", tmp_path / "bases")
    assert join(open_deltas(tmp_path / "deltas", TASKS[:2]), "rows", tmp_path / "bases") == (5, 0)
    assert join(open_deltas(tmp_path / "deltas", TASKS[:2]), "columns", tmp_path / "bases") == (5, 0)
    file = deltas.files["task0"]
    changed = {name: file.read(name) for name in file.names}
    changed["proj"] = changed["proj"] + 1
    save_tensors(file.path, changed, file.metadata["merganser"])
    assert join(open_deltas(tmp_path / "deltas", TASKS[:2]), "columns", tmp_path / "bases") == (1, 4)


def test_the_number_of_threads_changes_no_byte(deltas: Deltas, tmp_path: Path) -> None:
    join(deltas, "rows", tmp_path / "one")
    join(deltas, "rows", tmp_path / "three", threads=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_weight_other_than_one_leaves_no_basis(deltas: Deltas, weight: float, tmp_path: Path) -> None:
    layer = open_joint(joined(deltas, "rows", tmp_path / "joint"), TASKS).layer("proj")
    assert isinstance(layer, LayerDeltas)
    assert layer.basis is not None
    found = weighted(layer, (1.0, 1.0, weight))
    assert isinstance(found, LayerDeltas)
    assert (found.basis is None) == (weight != 1)


def test_adapters_have_no_basis_and_merge_as_they_do_without(tmp_path: Path) -> None:
    files = {task: write_adapter(tmp_path / "deltas" / f"{task}.safetensors", seed) for seed, task in enumerate(TASKS)}
    deltas, folder = Deltas(files), joined(Deltas(files), "rows", tmp_path / "joint")
    assert list((folder / BASES).iterdir()) == []
    layer = open_joint(folder, TASKS).layer("w")
    assert isinstance(layer, LayerLowRank)
    method = registry.get("drm_h")
    assert torch.equal(method.function(layer, density=0.2), method.function(deltas.layer("w"), density=0.2))


def write_adapter(path: Path, seed: int) -> DeltaFile:
    """Write a delta of rank 2 as its factors."""
    generator = torch.Generator().manual_seed(seed)
    factors = {"w.left": torch.randn(9, 2, generator=generator), "w.right": torch.randn(2, 7, generator=generator)}
    path.parent.mkdir(exist_ok=True)
    save_tensors(path, factors, '{"kinds": {"w": "matrix"}, "norms": {"w": 1.0}, "shapes": {"w": [9, 7]}}')
    return DeltaFile(path)


def test_the_deltas_beside_the_bases_take_no_room(deltas: Deltas, tmp_path: Path) -> None:
    folder = joined(deltas, "rows", tmp_path / "joint")
    for task, file in deltas.files.items():
        assert (folder / DELTAS / f"{task}.safetensors").samefile(file.path)


def test_where_there_are_no_links_the_deltas_are_copied(
    deltas: Deltas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    folder = joined(deltas, "rows", tmp_path / "joint")
    for task, file in deltas.files.items():
        assert (folder / DELTAS / f"{task}.safetensors").read_bytes() == file.path.read_bytes()


def test_a_killed_join_goes_on_with_what_it_had(tmp_path: Path) -> None:
    """Killed with SIGKILL at two moments: every whole file is kept, and the end is that of a join nobody disturbed."""
    names = [f"w{n:02}" for n in range(20)]
    layers = {task: {name: low_rank_plus_noise((200, 200), t) for name in names} for t, task in enumerate(TASKS)}
    deltas = Deltas({task: write_deltas(tmp_path / "deltas", task, layers) for task in TASKS})
    for count in ("4", "8"):
        command = [*python(), "-c", JOIN, count, str(tmp_path / "deltas"), str(tmp_path / "bases"), *TASKS]
        killed = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        assert killed.returncode == -signal.SIGKILL
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "bases").glob("[!.]*")}
    assert 8 <= len(kept) < len(names)
    assert join(deltas, "rows", tmp_path / "bases", threads=2) == (len(names) - len(kept), len(kept))
    assert {name: (tmp_path / "bases" / name).stat().st_ino for name in kept} == kept
    join(deltas, "rows", tmp_path / "undisturbed")
    assert contents(tmp_path / "bases") == contents(tmp_path / "undisturbed")
