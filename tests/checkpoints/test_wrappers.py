"""Names with wrappers of training in them (FSDP, activation checkpointing, torch.compile, DDP) are read without."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.sources.fetching import fetch_checkpoint
from tests.checkpoints.adapters.small import rewritten, write_adapter, write_base
from tests.merges import merge_checkpoints

State = dict[str, Tensor]
AROUND, WITHIN = "{}.base_model.model.", "base_model.model.{}."  # where a wrapper stands in an adapter's names


def network() -> nn.Module:
    """Make two blocks in a module, and a head."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)) for _ in range(2))
    return nn.ModuleDict({"model": nn.ModuleDict({"layers": layers}), "lm_head": nn.Linear(3, 2)})


def checkpointed(model: nn.Module) -> nn.Module:
    """Recompute each block's activations."""
    layers = model["model"]["layers"]  # type: ignore[index]
    for number, block in enumerate(layers):
        layers[number] = checkpoint_wrapper(block)
    return model


def parallel(model: nn.Module) -> nn.Module:
    """Wrap one block and the whole in what gives names as DDP does, which needs processes."""
    layers = model["model"]["layers"]  # type: ignore[index]
    layers[0] = nn.DataParallel(layers[0])
    return nn.DataParallel(model)


def named(wrapper: str) -> Callable[[nn.Module], State]:
    """Give a state with a wrapper in front of all names and within those of blocks."""

    def state(model: nn.Module) -> State:
        within = {name.replace("layers.1.", f"layers.1.{wrapper}."): v for name, v in model.state_dict().items()}
        return {f"{wrapper}.{name}": value for name, value in within.items()}

    return state


WRAPPED: dict[str, Callable[[nn.Module], State]] = {
    # the wrapper's hook takes its name out of its own state_dict; FSDP and others save what named_parameters gives
    "activation checkpointing": lambda model: {
        name: value.detach() for name, value in nn.Module.named_parameters(checkpointed(model))
    },
    "DDP": lambda model: parallel(model).state_dict(),
    **{
        name: named(name) for name in ("_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_forward_module", "_module")
    },
}


def saved(tmp_path: Path, wrap: Callable[[nn.Module], State]) -> list[Path]:
    """Save a base, and a model that is larger by one with wrapped names."""
    base, tuned = network(), network()
    plain = base.state_dict()
    tuned.load_state_dict({name: value + 1 for name, value in plain.items()})
    paths = [tmp_path / name for name in ("base", "tuned")]
    for path, state in zip(paths, (plain, wrap(tuned)), strict=True):
        path.mkdir()
        save_file({name: value.clone() for name, value in state.items()}, path / "model.safetensors", {"format": "pt"})
    return paths


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_model_whose_names_have_wrappers_is_merged_under_the_bases_names(wrapper: str, tmp_path: Path) -> None:
    base, tuned = saved(tmp_path, WRAPPED[wrapper])
    stored = load_file(tuned / "model.safetensors")
    assert not stored.keys() & {"model.layers.0.0.weight", "model.layers.1.0.weight"} or wrapper == "DDP"
    notes = merge_checkpoints("average", {}, base, {"task": tuned}, tmp_path / "out", device="cpu")
    merged, plain = (load_file(path / "model.safetensors") for path in (tmp_path / "out", base))
    assert merged.keys() == plain.keys()
    assert all(torch.equal(merged[name], plain[name] + 1) for name in plain)
    words = {"DDP": "module", "activation checkpointing": "_checkpoint_wrapped_module"}.get(wrapper, wrapper)
    assert f"task: read without the wrappers of training in its names: {words}" in notes


def adapted(model: nn.Module) -> State:
    """Give a state whose head is in an adapter's layer, which has the head's weights under another name."""
    return {name.replace("lm_head.", "lm_head.base_layer."): value for name, value in model.state_dict().items()}


def normed(model: nn.Module) -> State:
    """Give a state whose head has its weights as norms and directions."""
    nn.utils.parametrizations.weight_norm(model["lm_head"])  # type: ignore[index]
    return model.state_dict()


@pytest.mark.parametrize(("wrap", "name"), [(adapted, "base_layer.bias"), (normed, "parametrizations.weight.orig")])
def test_what_stands_in_the_place_of_a_parameter_is_named(
    wrap: Callable[[nn.Module], State], name: str, tmp_path: Path
) -> None:
    base, tuned = saved(tmp_path, wrap)
    with pytest.raises(InputError, match=f"which the base has; it has lm_head.{name}.* there: unwrap it"):
        merge_checkpoints("average", {}, base, {"task": tuned}, tmp_path / "out", device="cpu")


def test_a_base_with_wrappers_gives_a_merge_without(tmp_path: Path) -> None:
    tuned, base = saved(tmp_path, WRAPPED["_fsdp_wrapped_module"])
    notes = merge_checkpoints("average", {}, base, {"task": tuned}, tmp_path / "out", device="cpu")
    assert load_file(tmp_path / "out/model.safetensors").keys() == network().state_dict().keys()
    assert "wrappers of training in the base's names, left out: _fsdp_wrapped_module" in notes


def test_fetch_writes_the_names_of_the_model(tmp_path: Path) -> None:
    base, tuned = saved(tmp_path, WRAPPED["_orig_mod"])
    (tmp_path / "fetched").mkdir()
    assert fetch_checkpoint(tuned, tmp_path / "fetched")["wrappers"] == ["_orig_mod"]
    fetched, plain = (load_file(path / "model.safetensors") for path in (tmp_path / "fetched", base))
    assert fetched.keys() == plain.keys()
    assert all(torch.equal(fetched[name], plain[name] + 1) for name in plain)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_with_wrappers_are_read_by_their_index(ending: str, tmp_path: Path) -> None:
    state = {"_orig_mod.a.weight": torch.ones(2), "_orig_mod.b._orig_mod.weight": torch.zeros(2)}
    stem = "model" if ending == "safetensors" else "pytorch_model"
    files = {name: f"{stem}-0000{number}-of-00002.{ending}" for number, name in enumerate(state, 1)}
    for name, file in files.items():
        (save_file if ending == "safetensors" else torch.save)({name: state[name]}, tmp_path / file)
    (tmp_path / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": files}))
    opened = open_checkpoint(tmp_path)
    assert {name: opened.read(name).tolist() for name in opened.names} == {"a.weight": [1, 1], "b.weight": [0, 0]}


@pytest.mark.parametrize("save", [save_file, torch.save])
def test_two_names_that_become_one_are_refused_by_the_wrapper(save: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / ("model.safetensors" if save is save_file else "pytorch_model.bin")
    save({"a.weight": torch.ones(2), "a._orig_mod.weight": torch.zeros(2)}, file)
    with pytest.raises(InputError, match=r"a\.weight is there twice, once with _orig_mod, a wrapper of training"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["_flat_param", "_fsdp_wrapped_module._flat_param", "layers.0.flat_param_0"])
def test_parameters_that_fsdp_flattened_are_refused_with_what_saves_them_whole(name: str, tmp_path: Path) -> None:
    save_file({name: torch.ones(9)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"parameters flattened by FSDP.*StateDictType\.FULL_STATE_DICT"):
        open_checkpoint(tmp_path)


def test_a_model_that_has_a_part_called_module_keeps_it(tmp_path: Path) -> None:
    """LeViT has one in each block."""
    state = {"stages.0.module.weight": torch.ones(2), "stages.1.module.weight": torch.ones(2)}
    for name, own in (("base", state), ("tuned", {key: value + 1 for key, value in state.items()})):
        (tmp_path / name).mkdir()
        save_file(own, tmp_path / name / "model.safetensors")
    models = {"t": tmp_path / "tuned"}
    notes = merge_checkpoints("average", {}, tmp_path / "base", models, tmp_path / "out", device="cpu")
    assert load_file(tmp_path / "out/model.safetensors").keys() == state.keys()
    assert not any("wrappers" in note for note in notes)


@pytest.mark.parametrize(
    ("wrapper", "where"),
    [("_orig_mod", AROUND), ("_fsdp_wrapped_module", AROUND), ("module", AROUND), ("_orig_mod", WITHIN)],
)
def test_an_adapter_whose_names_have_wrappers_is_the_same_update(wrapper: str, where: str, tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    wanted = write_adapter(tmp_path / "adapter", tmp_path / "base")
    rewritten(tmp_path / "adapter", lambda name: name.replace("base_model.model.", where.format(wrapper)))
    notes = merge_checkpoints(
        "average", {}, tmp_path / "base", {"t": tmp_path / "adapter"}, tmp_path / "out", device="cpu"
    )
    merged = load_file(tmp_path / "out/model.safetensors")
    assert max(float((merged[name] - wanted[name]).abs().max()) for name in merged) < 1e-6
    assert f"t: read without the wrappers of training in its names: {wrapper}" in notes
