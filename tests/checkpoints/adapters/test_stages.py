"""A task given as an adapter goes through every stage, as its whole model would."""

import json
import shutil
from pathlib import Path

import open_clip
import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, get_peft_model
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.headers import check_sources
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.inputs.deltas import DeltaFile
from merganser.overlays import task_model
from merganser.tasks import decompose, evaluate, extract, fetch, merge, prepare
from tests.checkpoints.adapters.small import rewritten
from tests.hub import COMMIT, serve
from tests.tasks.comparison import TASKS, inside, write_params, write_sources

METHODS = {
    "individual": {"method": "individual", "reads": "deltas"},
    "average": {"method": "average", "reads": "deltas"},
    "tsv_m": {"method": "tsv_m", "reads": "svd", "rank_fraction": 0.2},
}
LAYERS = r"transformer\.resblocks\.\d\.(attn|mlp\.c_fc|mlp\.c_proj)"


def write_tower_adapter(folder: Path, base: Path) -> dict[str, Tensor]:
    """Adapt the image tower alone; return the tower's parameters as PEFT merges them."""
    model = open_clip.create_model(f"local-dir:{base}")
    tuned = get_peft_model(model.visual, LoraConfig(r=3, lora_alpha=6, target_modules=LAYERS))
    generator = torch.Generator().manual_seed(3)
    for parameter in tuned.parameters():
        if parameter.requires_grad:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    tuned.save_pretrained(folder)
    return {f"visual.{name}": value.detach().clone() for name, value in tuned.merge_and_unload().state_dict().items()}


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """Carry a comparison of three tasks, `red` an adapter, through the stages; return it and the tower behind `red`."""
    folder = tmp_path_factory.mktemp("comparison")
    write_params(folder, METHODS)
    write_sources(folder / "sources")
    shutil.rmtree(folder / "sources/red")
    tower = write_tower_adapter(folder / "sources/red", folder / "sources/base")
    with inside(folder):
        check_sources(load_params(Path("params.yaml")), Path(), lambda path: False)
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            fetch.main(["data", task])
            extract.main([task])
            decompose.main([task])
        prepare.main(["red"])
        for entry in METHODS:
            merge.main([entry])
            evaluate.main([entry, "red"])
    return folder, tower


def test_an_adapter_is_fetched_as_it_is_with_its_description(carried: tuple[Path, dict[str, Tensor]]) -> None:
    fetched, given = carried[0] / "data/checkpoints/red", carried[0] / "sources/red"
    names = {"adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in fetched.iterdir()} == names | {"source.json"}
    assert all((fetched / name).read_bytes() == (given / name).read_bytes() for name in names)
    assert set(json.loads((fetched / "source.json").read_text())["files"]) == names


def test_its_deltas_are_factors_of_the_towers_layers(carried: tuple[Path, dict[str, Tensor]]) -> None:
    deltas = DeltaFile(carried[0] / "data/deltas/red.safetensors")
    touched = [name for name in deltas.kinds if deltas.is_touched(name)]
    assert len(touched) == 4  # two matrices of attention and two of the perceptron
    assert all(deltas.is_factored(name) and deltas.factors(name)[0].shape[1] == 3 for name in touched)


def test_its_own_model_is_the_one_that_peft_merges(carried: tuple[Path, dict[str, Tensor]]) -> None:
    folder, tower = carried
    own = dict(task_model(folder / "data/merged/individual", "red"))
    for name, value in tower.items():
        torch.testing.assert_close(own[name], value, rtol=0, atol=1e-6)


def test_an_adapter_and_whole_models_average(carried: tuple[Path, dict[str, Tensor]]) -> None:
    folder, tower = carried
    merged = open_checkpoint(folder / "data/merged/average")
    others = [open_checkpoint(folder / "data/checkpoints" / task) for task in ("dark", "light")]
    for name, value in tower.items():
        mean = (value + others[0].read(name) + others[1].read(name)) / 3
        torch.testing.assert_close(merged.read(name), mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("entry", METHODS)
def test_every_merge_is_measured(entry: str, carried: tuple[Path, dict[str, Tensor]]) -> None:
    assert 0 <= json.loads((carried[0] / f"data/metrics/{entry}/red.json").read_text())["value"] <= 1


def test_an_adapter_that_does_not_fit_is_named_before_any_work(
    carried: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    shutil.copytree(carried[0] / "sources", tmp_path / "sources")
    shutil.copyfile(carried[0] / "params.yaml", tmp_path / "params.yaml")
    rewritten(tmp_path / "sources/red", lambda name: name.replace("resblocks.0.attn", "resblocks.1.attn"))
    params = load_params(tmp_path / "params.yaml")
    with pytest.raises(InputError, match=r"^tasks\.red\.source: red: the adapter's transformer\.resblocks\.1\.attn"):
        check_sources(params, tmp_path, lambda path: False)


# fetching


def test_torch_weights_of_an_adapter_become_safetensors(
    carried: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    given = open_checkpoint(carried[0] / "sources/red/adapter_model.safetensors")
    shutil.copytree(carried[0] / "sources/red", tmp_path / "a")
    (tmp_path / "a/adapter_model.safetensors").unlink()
    torch.save({name: given.read(name) for name in given.names}, tmp_path / "a/adapter_model.bin")
    fetch.fetch_model(tmp_path / "a", tmp_path / "out")
    found = open_checkpoint(tmp_path / "out/adapter_model.safetensors")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "source.json",
    }
    assert all(torch.equal(found.read(name), given.read(name)) for name in given.names)


def test_an_adapter_that_is_more_is_refused_before_anything_is_fetched(
    carried: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    shutil.copytree(carried[0] / "sources/red", tmp_path / "a")
    rewritten(tmp_path / "a", lambda name: name.replace("lora_A.weight", "lora_magnitude_vector"))
    with pytest.raises(InputError, match="lora_magnitude_vector is not part of a low-rank update"):
        fetch.fetch_model(tmp_path / "a", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_on_a_hub_is_fetched_at_its_commit(
    carried: tuple[Path, dict[str, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, pointer = carried[0] / "sources/red", tmp_path / "there.yaml"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    pointer.write_text(f"{{hub: org/adapter, revision: {COMMIT}}}\n")
    with serve({"models/org/adapter": given}, COMMIT) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        fetch.fetch_model(pointer, tmp_path / "out")
    names = {"adapter_config.json", "adapter_model.safetensors"}
    assert {Path(path).name for path in hub.asked if "/resolve/" in path} == names | {"README.md"}  # its licence
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"source.json"}
    assert all((tmp_path / "out" / name).read_bytes() == (given / name).read_bytes() for name in names)
