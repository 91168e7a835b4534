"""Texts are scored in a batch as they are alone, whether or not a network looks at an attention mask."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared, write_prepared
from merganser.evaluation.texts import encode_texts, logits_of
from merganser.models import get_family, open_network
from merganser.models.texts import in_groups, is_alike
from tests.drills.networks import CLASSES, written
from tests.tiny_transformers import FAMILIES, TOKENS, state_of, tokenizer, write_model

TEXTS = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat", "no cat"]


def opened(folder: Path, family: str, model_type: str) -> Any:
    headed = family == "encoder"
    written(family, model_type, headed, folder)
    network: Any = open_network(family, folder, outputs=CLASSES if headed else None)
    network.load(state_of(folder).items())
    return network


@pytest.mark.parametrize(
    ("family", "model_type", "batching"),
    [
        ("causal", "rwkv", "single"),
        ("causal", "recurrent_gemma", "equal"),
        ("encoder", "fnet", "equal"),
        ("encoder", "convbert", "equal"),
        ("causal", "mamba", "padded"),
    ],
)
def test_scores_in_a_batch_are_those_of_each_text_alone(
    family: str, model_type: str, batching: str, tmp_path: Path
) -> None:
    network = opened(tmp_path, family, model_type)
    assert network.batching == batching
    batch, single = network.encode(TEXTS, 30), [network.encode([text], 30) for text in TEXTS]
    alone = torch.cat([network.logits(each) for each in single])
    torch.testing.assert_close(network.logits(batch), alone)
    torch.testing.assert_close(network.features(batch), torch.cat([network.features(each) for each in single]))
    torch.testing.assert_close(network.forward({}, batch).detach(), alone)
    if family == "causal":
        ranks = torch.cat([network.rank(each, ["yes", "no cat"]) for each in single])
        torch.testing.assert_close(network.rank(batch, ["yes", "no cat"]), ranks)
        assert network.generate(batch, 4) == [text for each in single for text in network.generate(each, 4)]


@pytest.mark.parametrize("kind", [kind for kind, family in FAMILIES.items() if family in ("encoder", "causal")])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_that_look_at_the_mask_keep_their_padded_batches(kind: str, precision: str, tmp_path: Path) -> None:
    write_model(tmp_path, kind, 3, getattr(torch, precision))
    network: Any = open_network(FAMILIES[kind], tmp_path, outputs=3, precision=precision)
    network.load(state_of(tmp_path).items())
    assert network.batching == "padded"


def test_a_network_whose_cache_fails_in_transformers_runs_without(tmp_path: Path) -> None:
    config = RecurrentGemmaConfig(
        **{"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "lru_width": 16, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, **TOKENS},
    )
    model = RecurrentGemmaForCausalLM(config).eval()  # two recurrent layers, none of attention
    model.save_pretrained(tmp_path)
    tokenizer(ends=False).save_pretrained(tmp_path)
    network: Any = open_network("causal", tmp_path)
    network.load(state_of(tmp_path).items())
    inputs = network.encode(TEXTS[:1], 30)
    with pytest.raises(ValueError, match="get_seq_length"):
        model(**inputs)
    with torch.inference_mode():
        expected = model(**inputs, use_cache=False).logits[:, -1]
    torch.testing.assert_close(network.logits(network.encode(TEXTS, 30))[:1], expected)
    word = network.tokenizer.decode(expected.argmax(), skip_special_tokens=True)
    assert network.generate(inputs, 1) == [word]


def test_a_tokenizer_that_gives_no_mask_is_asked_for_one(tmp_path: Path) -> None:
    """As FNet's own, whose layers take none."""
    written("encoder", "fnet", True, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    own = json.loads(path.read_text()) | {"model_input_names": ["input_ids", "token_type_ids"]}
    path.write_text(json.dumps(own))
    network: Any = open_network("encoder", tmp_path, outputs=CLASSES)
    network.load(state_of(tmp_path).items())
    assert network.batching == "equal"
    alone = torch.cat([network.logits(network.encode([text], 30)) for text in TEXTS])
    (tmp_path / "prepared").mkdir()
    about = {"kind": "", "settings": {}, "metric": "", "classes": []}
    write_prepared(tmp_path / "prepared", [encode_texts(network, TEXTS, 30)], about)
    torch.testing.assert_close(logits_of(network, Prepared(tmp_path / "prepared"), 3), alone)


def test_gradients_reach_the_parameters_through_batches_of_one_length(tmp_path: Path) -> None:
    network = opened(tmp_path, "encoder", "fnet")
    given = {name: value.clone().requires_grad_() for name, value in state_of(tmp_path).items()}
    network.forward(given, network.encode(TEXTS, 30)).square().sum().backward()
    assert given["classifier.weight"].grad is not None
    assert given["classifier.weight"].grad.abs().sum() > 0


def test_a_model_of_nan_decides_nothing_and_the_next_one_does(tmp_path: Path) -> None:
    written("encoder", "fnet", True, tmp_path)
    state = state_of(tmp_path)
    network: Any = open_network("encoder", tmp_path, outputs=CLASSES)
    network.load((name, value * float("nan")) for name, value in state.items())
    assert network.batching is None
    network.load(state.items())
    assert network.batching == "equal"


def test_results_come_in_the_order_of_the_texts() -> None:
    mask = torch.tensor([[1, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1]])
    inputs = {"attention_mask": mask, "input_ids": torch.arange(4)[:, None].expand(4, 3)}
    sizes = list[int]()

    def run(part: Any) -> list[int]:
        sizes.append(len(part["input_ids"]))
        return list(part["input_ids"][:, 0].tolist())

    assert in_groups(inputs, run, "equal") == [0, 1, 2, 3]
    assert sorted(sizes) == [1, 1, 2]
    assert in_groups(inputs, run, "single") == [0, 1, 2, 3]


def test_rounding_is_no_difference_and_a_thousandth_is_one() -> None:
    alone = torch.tensor([[1.0, -4.0]])
    assert is_alike(alone * (1 + 1e-6), alone, torch.float32)
    assert not is_alike(alone + 4e-3, alone, torch.float32)
    assert is_alike(alone + 4e-3, alone, torch.bfloat16)


def test_types_that_no_family_builds_are_refused_with_the_reason_that_the_docs_list(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/families.md").read_text()
    for family in ("encoder", "causal", "seq2seq"):
        module: Any = get_family(family)
        for name, reason in module.UNSUPPORTED.items():
            assert name not in module.MODEL_TYPES
            assert re.search(rf"\| `{family}` \|[^|]*`{name}`[^|]*\| {re.escape(reason)} \|", page), name
    (tmp_path / "config.json").write_text('{"model_type": "trocr"}')
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="trocr is not of the family causal; no family builds it: it reads pictures"):
        open_network("causal", tmp_path)
