"""LoRA adapters extracted from fine-tuned models: PEFT loads them, and they are the best of their rank."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from merganser.checkpoints.kinds import ParameterRules
from merganser.config.recipes import Source
from merganser.errors import InputError
from merganser.standalone.extract_lora import Cut, LayerError, extract_adapter
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.tiny_transformers import random_model, write_model
from tests.transformers_models import WIDTH, load, save_models, tiny

EXACT = 1e-5


def extracted(folder: Path, cut: Cut, base: str = "base", **options: Any) -> dict[str, LayerError]:
    """Extract the adapter of a folder's model `task0` into its `adapter`; return each layer's error by its name."""
    rules = options.pop("rules", ParameterRules(flags=True))
    sources = Source(path=str(folder / "task0")), Source(path=str(folder / base))
    layers, notes = extract_adapter(*sources, folder / "adapter", cut, rules=rules, **options)
    assert not notes
    return {each.name: each for each in layers}


def adapted(name: str, folder: Path) -> dict[str, Tensor]:
    """Load the base and the adapter onto it by PEFT; return the parameters of the merged model."""
    base = load(tiny(name), folder / "base")
    return dict(peft.PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload().state_dict())


@pytest.mark.parametrize("name", ["llama, tied", "llama, untied", "gpt2", "bert", "clip", "convnext"])
def test_of_full_rank_with_all_else_whole_it_is_the_fine_tuned_model(name: str, tmp_path: Path) -> None:
    save_models(tmp_path, name, tasks=1)
    whole = [
        "*[nN]orm*",
        "*downsampling_layer.0.*",
        "*.ln_*",
        "*embed*",
        "*wte*",
        "*wpe*",
        "*lm_head*",
        "classifier*",
        "*layer_scale*",
        "logit_scale",
    ]
    layers = extracted(tmp_path, Cut(rank=4 * WIDTH), saved=whole, biases=True)
    ours, theirs = adapted(name, tmp_path), load(tiny(name), tmp_path / "task0").state_dict()
    beyond = {each.name for each in layers.values() if each.rank == 0}  # parameters of no module: PEFT has none of them
    assert beyond <= {"logit_scale", *(key for key in theirs if key.endswith("layer_scale_parameter"))}
    for key in theirs.keys() - beyond:
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=EXACT)


def test_it_is_the_best_of_its_rank_and_says_what_it_lacks(tmp_path: Path) -> None:
    models = save_models(tmp_path, "llama, untied", tasks=1)
    layers = extracted(tmp_path, Cut(rank=3))
    ours, base, theirs = adapted("llama, untied", tmp_path), *map(state, (models["base"], models["task0"]))
    for name, layer in layers.items():
        delta = (theirs[name] - base[name]).double()
        kept = torch.zeros_like(delta)
        if layer.rank:
            u, s, vh = torch.linalg.svd(delta, full_matrices=False)
            kept = (u[:, :3] * s[:3]) @ vh[:3]
        torch.testing.assert_close((ours[name] - base[name]).double(), kept, rtol=0, atol=EXACT)
        assert layer.norm == pytest.approx(delta.norm().item(), rel=EXACT)
        assert layer.error == pytest.approx((delta - kept).norm().item(), rel=EXACT)
    assert {layer.rank for layer in layers.values()} == {0, 3}
    assert layers["model.norm.weight"].rank == 0


def test_energy_chooses_the_least_rank_of_each_layer(tmp_path: Path) -> None:
    models = save_models(tmp_path, "llama, untied", tasks=1)
    layers, (base, theirs) = extracted(tmp_path, Cut(energy=0.8)), map(state, (models["base"], models["task0"]))
    cut = {name: layer for name, layer in layers.items() if layer.rank}
    for name, layer in cut.items():
        squares = torch.linalg.svdvals((theirs[name] - base[name]).double()).square()
        shares = squares.cumsum(0) / squares.sum()
        assert layer.rank
        assert shares[layer.rank - 1] >= 0.8
        assert layer.rank == 1 or shares[layer.rank - 2] < 0.8
    assert len({layer.rank for layer in cut.values()}) > 1
    adapted("llama, untied", tmp_path)


@pytest.mark.parametrize("base", ["base", "base/model.safetensors"])
def test_the_embedding_of_a_tied_model_stays_its_output_embedding(base: str, tmp_path: Path) -> None:
    save_models(tmp_path, "llama, tied", tasks=1)
    extracted(tmp_path, Cut(rank=4 * WIDTH), base=base, saved=["model.embed_tokens.weight"])
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["modules_to_save"] == ["model.embed_tokens", "lm_head"]
    ours = adapted("llama, tied", tmp_path)
    assert torch.equal(ours["lm_head.weight"], ours["model.embed_tokens.weight"])


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_what_the_loaded_model_has_no_module_for_is_named_and_the_rest_is_loaded(name: str, tmp_path: Path) -> None:
    save_models(tmp_path, name, tasks=1)
    whole = ["*norm*", "*embed*", "lm_head*", "*gate.weight"]
    layers = extracted(tmp_path, Cut(rank=4 * WIDTH), saved=whole, biases=True)
    lost = {each.name for each in layers.values() if each.rank == 0}
    assert lost
    assert all(".experts." in each for each in lost)
    ours, theirs = adapted(name, tmp_path), load(tiny(name), tmp_path / "task0").state_dict()
    for key in (key for key in theirs if ".experts." not in key):
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=EXACT)


def test_what_is_excepted_stays_the_bases(tmp_path: Path) -> None:
    models = save_models(tmp_path, "bert", tasks=1)
    extracted(tmp_path, Cut(rank=2), rules=ParameterRules(heads=["classifier.*"], flags=True), biases=True)
    ours, base = adapted("bert", tmp_path), state(models["base"])
    assert torch.equal(ours["classifier.weight"], base["classifier.weight"])
    assert torch.equal(ours["classifier.bias"], base["classifier.bias"])


def test_what_makes_no_adapter_is_refused(tmp_path: Path) -> None:
    for given in ({}, {"rank": 2, "energy": 0.5}):
        with pytest.raises(InputError, match="--rank, --energy: give one of the two"):
            Cut(**given)
    for energy in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="--energy: must be above 0 and at most 1"):
            Cut(energy=energy)
    base = write_base(tmp_path / "base")
    write_adapter(tmp_path / "lora", tmp_path / "base")
    sources = {name: Source(path=str(tmp_path / name)) for name in ("base", "lora")}
    for model, said in (("lora", "is an adapter already"), ("base", "no linear map differs from the base's")):
        with pytest.raises(InputError, match=said):
            extract_adapter(sources[model], sources["base"], tmp_path / "a", Cut(1), rules=ParameterRules(flags=True))
    assert base is not None
    assert not (tmp_path / "a").exists()


def state(folder: Path) -> dict[str, Tensor]:
    """Read a model's parameters."""
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "head"), [("bert", "classifier"), ("roberta", "classifier"), ("llama, untied", "score")]
)
@pytest.mark.parametrize("base", ["headless", "without a prefix", "of other classes"])
def test_a_classifiers_head_is_saved_and_peft_gives_its_logits(kind: str, head: str, base: str, tmp_path: Path) -> None:
    tuned = write_model(tmp_path / "task0", kind, outputs=3, seed=1)
    start = random_model(kind, outputs=2)
    parameters = {name: value for name, value in start.state_dict().items() if not name.startswith(head)}
    (start.base_model if base == "without a prefix" else start).save_pretrained(
        tmp_path / "base", **({"state_dict": parameters} if base == "headless" else {})
    )
    saved = [f"{head}*", "*[nN]orm*", "*embed*"]
    with pytest.raises(InputError, match=rf"save it whole: --modules-to-save '{head}\.\*', or leave it out: --except"):
        extracted(tmp_path, Cut(rank=4 * WIDTH), saved=saved[1:], biases=True)
    layers = extracted(tmp_path, Cut(rank=4 * WIDTH), saved=saved, biases=True)
    assert any(name.startswith(head) and each.rank is None for name, each in layers.items())
    loaded = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=3, ignore_mismatched_sizes=True
    )
    adapter = peft.PeftModel.from_pretrained(loaded, tmp_path / "adapter").eval()
    tokens = torch.arange(4, 10).reshape(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(adapter(tokens).logits, tuned(tokens).logits, rtol=0, atol=10 * EXACT)
