"""Networks whose checkpoints transformers converts on loading: experts one by one, other names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.models import get_family, open_network
from merganser.statistics.kinds.gram import refuse_parts
from tests.drills.networks import written
from tests.models.families.test_transformers import DTYPES, theirs_of
from tests.tiny_transformers import state_of

TEXTS = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat"]
EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v3", "qwen3_next", "jamba")
FIRST = "model.layers.0.block_sparse_moe.experts.0.w1.weight"


def saved(folder: Path, model_type: str) -> dict[str, Tensor]:
    written("causal", model_type, False, folder)
    return state_of(folder)


def loaded(folder: Path, state: dict[str, Tensor], **options: Any) -> Any:
    network = open_network("causal", folder, **options)
    network.load(state.items())
    return network


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("model_type", [*EXPERTS, "gpt_neox"])
def test_parameters_are_those_of_from_pretrained_to_the_bit(model_type: str, precision: str, tmp_path: Path) -> None:
    state = saved(tmp_path, model_type)
    get_family("causal").check(tmp_path, open_checkpoint(tmp_path))
    network = loaded(tmp_path, state, precision=precision)
    theirs = theirs_of(AutoModelForCausalLM, tmp_path, precision)
    expected, found = theirs.state_dict(), network.module.state_dict()
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    inputs = network.encode(TEXTS[:1], 30)
    with torch.inference_mode():
        logits = theirs(**inputs, logits_to_keep=1).logits[:, -1]
    torch.testing.assert_close(network.logits(inputs), logits)  # experts are added up as their memory is aligned
    assert (model_type in EXPERTS) == any("expert" in name for name in network.parts())


def test_given_parameters_take_the_place_of_the_loaded_ones_and_get_gradients(tmp_path: Path) -> None:
    state = saved(tmp_path, "mixtral")
    network, moved = loaded(tmp_path, state), {name: value + 0.1 for name, value in state.items()}
    inputs = network.encode(TEXTS, 30)
    before = network.logits(inputs)
    given = {name: value.clone().requires_grad_() for name, value in moved.items()}
    scores = network.forward(given, inputs)
    scores.square().sum().backward()
    assert all(value.grad is not None for value in given.values())
    reached = {name for name, value in given.items() if value.grad is not None and value.grad.any()}
    assert len(reached) > 0.7 * len(given)  # an expert that no token is routed to has a gradient of zero
    assert torch.equal(network.logits(inputs), before)
    network.load(moved.items())
    torch.testing.assert_close(scores.detach(), network.logits(inputs))


def test_an_expert_alone_is_given_and_the_others_stay_the_loaded_ones(tmp_path: Path) -> None:
    state = saved(tmp_path, "mixtral")
    network = loaded(tmp_path, state)
    inputs, moved = network.encode(TEXTS, 30), (state[FIRST] + 0.5).requires_grad_()
    scores = network.forward({FIRST: moved}, inputs)
    (gradient,) = torch.autograd.grad(scores.square().sum(), moved)
    network.load((state | {FIRST: moved.detach()}).items())
    torch.testing.assert_close(scores.detach(), network.logits(inputs))
    step = 1e-2
    place = divmod(int(gradient.abs().argmax()), gradient.shape[1])
    changed = [moved.detach().clone(), moved.detach().clone()]
    changed[0][place] += step
    changed[1][place] -= step
    up, down = (network.forward({FIRST: value}, inputs).detach().square().sum() for value in changed)
    assert float((up - down) / (2 * step)) == pytest.approx(float(gradient[place]), rel=0.02)


def test_linear_maps_are_those_whose_inputs_are_seen_and_others_are_refused_by_name(tmp_path: Path) -> None:
    network, seen = loaded(tmp_path, saved(tmp_path, "mixtral")), set[str]()
    with network.watch(lambda name, rows: seen.add(name)):
        network.logits(network.encode(TEXTS, 30))
    assert seen == set(network.linear_maps())
    assert seen >= {f"model.layers.{i}.self_attn.{key}_proj.weight" for i in (0, 1) for key in "qkvo"}
    refuse_parts(network, seen)
    with pytest.raises(InputError, match=rf"stacks or splits {FIRST} on loading, so no Gram matrix"):
        refuse_parts(network, {*seen, FIRST})


def test_experts_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    state = saved(tmp_path, "mixtral")
    experts = {name for name in state if name.startswith("model.layers.0.block_sparse_moe.experts.1.")}
    cases = [
        ({name: value for name, value in state.items() if name not in experts}, "gate_up_proj of shape"),
        (state | {FIRST: torch.zeros(3, 16)}, r"cannot make model\.layers\.0\.mlp\.experts\.gate_up_proj of"),
        ({name: value for name, value in state.items() if ".experts." not in name}, "of the architecture is missing"),
        (state | {"model.odd.weight": torch.zeros(2)}, r"parameter model\.odd\.weight is not in the architecture"),
    ]
    network = open_network("causal", tmp_path)
    for wrong, message in cases:
        save_file(wrong, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match=message):
            get_family("causal").check(tmp_path, open_checkpoint(tmp_path))
        with pytest.raises(InputError, match=message):
            network.load(wrong.items())


def test_the_experts_of_a_file_may_be_stacked_as_transformers_keeps_them(tmp_path: Path) -> None:
    state = saved(tmp_path, "mixtral")
    network = loaded(tmp_path, state)
    inputs = network.encode(TEXTS, 30)
    expected = network.logits(inputs)
    network.load(network.module.state_dict(keep_vars=False).copy().items())
    assert torch.equal(network.logits(inputs), expected)
    assert not network.parts()


def test_tables_of_sines_are_computed_where_the_checkpoint_has_none(tmp_path: Path) -> None:
    model = written("seq2seq", "marian", False, tmp_path)
    name = "model.encoder.embed_positions.weight"
    assert name not in open_checkpoint(tmp_path).names
    network: Any = open_network("seq2seq", tmp_path)
    network.load(state_of(tmp_path).items())
    assert torch.equal(network.module.state_dict()[name], model.state_dict()[name])
