"""How long a text a network takes, and what is said of a longer one before anything is merged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.kinds import text_generation
from merganser.models import open_network
from merganser.models.texts import positions_of
from tests.every_class import build
from tests.tiny_transformers import write_model


@torch.inference_mode()
def takes(module: Any, tokens: int) -> bool:
    """Tell whether a network runs on a text of so many tokens."""
    try:
        module.eval()(input_ids=torch.full((1, tokens), 5), attention_mask=torch.ones(1, tokens, dtype=torch.long))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("BertForMaskedLM", 32),
        ("DistilBertForMaskedLM", 32),
        ("RobertaForMaskedLM", 30),  # its padding token's place, and those before it, are not used
        ("MPNetForMaskedLM", 30),
        ("GPT2LMHeadModel", 32),
        ("OPTForCausalLM", 32),  # of 34, the first two of which are not used
        ("BartForCausalLM", 32),
        ("OpenAIGPTLMHeadModel", 32),
    ],
)
def test_learned_positions_say_how_long_a_text_may_be(name: str, positions: int) -> None:
    module = build(name)
    assert positions_of(module) == positions
    assert takes(module, positions)
    assert not takes(module, positions + 1)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BloomForCausalLM", "Gemma3ForConditionalGeneration"])
def test_positions_that_are_computed_or_of_a_picture_set_no_limit(name: str) -> None:
    module = build(name)
    assert positions_of(module) is None
    assert takes(module, 70)


def test_a_longer_text_is_refused_with_the_length_to_set(tmp_path: Path) -> None:
    write_model(tmp_path / "bert", "bert")
    network: Any = open_network("encoder", tmp_path / "bert", outputs=3)
    text = "cat " * 1000
    assert network.encode([text], network.positions)["input_ids"].shape == (1, network.positions)
    most = network.positions
    with pytest.raises(
        InputError, match=rf"has 1001 tokens, and .* for {most}; set data\.max_length to {most} or less"
    ):
        network.encode(["cat", text], 2000)


@pytest.mark.parametrize(("kind", "family"), [("gpt2", "causal"), ("llama, tied", "causal"), ("t5", "seq2seq")])
def test_a_prompt_leaves_room_for_its_answer(tmp_path: Path, kind: str, family: str) -> None:
    write_model(tmp_path / "model", kind)
    network: Any = open_network(family, tmp_path / "model")
    most = network.positions or 2000
    rows = Dataset.from_dict({"text": ["cat " * 3000], "answer": ["dog"]})

    def prepared(length: int) -> int:
        values = {"prompt": "{text}", "max_new_tokens": 10, "max_length": length}
        (chunk,) = text_generation.prepare(rows, open_evaluator("text_generation", values, None).settings, network)
        return int(chunk["input_ids"].shape[1])

    assert prepared(most - 10) == most - 10
    if kind != "gpt2":
        assert prepared(most) == most
    else:
        with pytest.raises(
            InputError, match=rf"answer has up to 10 tokens, .* for 1 after a prompt of {most - 1}; set"
        ):
            prepared(most - 1)
