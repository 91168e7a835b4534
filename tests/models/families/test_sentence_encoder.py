"""Sentence encoders against a plain loop over transformers, and the files by which a model is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from merganser.checkpoints.own_settings import write_own
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.inferring import family_of
from merganser.errors import InputError
from merganser.merging.cards import library_of
from merganser.models import ChangesFeatures, EncodesSentences, get_family, has_ability, open_network
from merganser.models.families.sentence_encoder import pooled
from merganser.sources.counting import bytes_a_value
from merganser.tasks.fetch import fetch_model
from tests.sentence_encoders import CLASSES, PACKAGE, POOL, edit, embeddings_one_by_one, write_encoder, write_files
from tests.tiny_transformers import state_of, write_model

FAMILY = "sentence_encoder"
TEXTS = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat", "no"]
MODES = [(mode,) for mode in POOL] + [("mean", "cls"), tuple(POOL)]
SCALED = dict(zip(MODES, [False, True] * 4, strict=True))


def loaded(folder: Path, **options: Any) -> Any:
    get_family(FAMILY).check(folder, open_checkpoint(folder))
    network = open_network(FAMILY, folder, **options)
    network.load(state_of(folder).items())
    return network


@pytest.fixture(scope="module", params=CLASSES)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_encoder(folder, request.param)
    return folder


@pytest.mark.parametrize(("modes", "normalized"), SCALED.items(), ids=map("+".join, MODES))
def test_embeddings_are_those_of_transformers_states_in_a_batch_and_alone(
    encoder: Path, modes: tuple[str, ...], normalized: bool
) -> None:
    write_files(encoder, modes, normalized, old=list(modes) == [mode for mode in POOL if mode in modes])
    network = loaded(encoder)
    assert has_ability(FAMILY, EncodesSentences)
    assert not has_ability(FAMILY, ChangesFeatures)
    assert network.batching == "padded"
    expected = torch.from_numpy(embeddings_one_by_one(encoder, TEXTS, modes, normalized))
    inputs = network.encode(TEXTS, 30)
    for found in (network.sentence_embeddings(inputs), network.logits(inputs), network.features(inputs)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    alone = torch.cat([network.logits(network.encode([text], 30)) for text in TEXTS])
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(network.forward(state_of(encoder), inputs).detach(), expected, rtol=1e-5, atol=2e-6)


def test_bfloat16_pools_in_float32(encoder: Path) -> None:
    write_files(encoder)
    model, words = AutoModel.from_pretrained(encoder, dtype=torch.bfloat16), AutoTokenizer.from_pretrained(encoder)
    found = loaded(encoder, precision="bfloat16").logits(words(TEXTS[:1], return_tensors="pt"))
    with torch.inference_mode():
        states = model(**words(TEXTS[:1], return_tensors="pt")).last_hidden_state
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, states.float().mean(dim=1).bfloat16())


@pytest.mark.parametrize("mode", POOL)
@pytest.mark.parametrize("left", [False, True])
def test_padding_on_either_side_is_not_pooled(mode: str, left: bool) -> None:
    states = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[place < length for place in range(7)] for length in (1, 2, 4, 6, 7)])
    mask = (mask.flip(1) if left else mask).long()
    expected = torch.stack([POOL[mode](each[shown.bool()]) for each, shown in zip(states, mask, strict=True)])
    torch.testing.assert_close(pooled(states, mask, [mode]), expected)


def test_texts_are_cut_and_put_into_lower_case_as_the_files_say(tmp_path: Path) -> None:
    write_encoder(tmp_path, max_seq_length=4, do_lower_case=True)
    network = loaded(tmp_path)
    expected = torch.from_numpy(embeddings_one_by_one(tmp_path, TEXTS, max_length=4))
    torch.testing.assert_close(network.logits(network.encode([text.upper() for text in TEXTS], 30)), expected)
    assert network.encode(TEXTS, 3)["input_ids"].shape == (4, 3)
    write_files(tmp_path, max_seq_length=None)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for most, side, limit in ((6, "right", 6), (10**30, "left", 32)):  # 32 positions
        edit(tmp_path, "tokenizer_config.json", settings | {"model_max_length": most, "truncation_side": side})
        network = loaded(tmp_path)
        assert network.longest == limit
        assert network.tokenizer.truncation_side == side
    assert network.tokenizer.decode(network.encode(["the cat sat"], 3)["input_ids"][0]) == "cat sat </s>"


def test_heads_of_pretraining_and_the_pooler_are_left_out(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model")
    state, plain = load_file(tmp_path / "model/model.safetensors"), loaded(tmp_path / "model")
    assert any("pooler" in name for name in state)
    inputs = plain.encode(TEXTS, 30)
    masked = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    masked.save_pretrained(tmp_path / "masked")
    for file in ("modules.json", "1_Pooling/config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "masked" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "masked" / file).write_bytes((tmp_path / "model" / file).read_bytes())
    assert torch.equal(loaded(tmp_path / "masked").logits(inputs), plain.logits(inputs))
    lacking = {name: value for name, value in state.items() if "layer.1.output" not in name}
    save_file(lacking, tmp_path / "model/model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"parameter encoder\.layer\.1\.output.* is missing"):
        get_family(FAMILY).check(tmp_path / "model", open_checkpoint(tmp_path / "model"))


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{PACKAGE}.Dense"}
FIRST = {"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"}
SECOND = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{PACKAGE}.Pooling"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "modules.json",
            [FIRST, SECOND, DENSE],
            r"module 2 is .*Dense in 2_Dense/; supported are Transformer, Pooling",
        ),
        ("modules.json", [FIRST], "no Pooling"),
        ("modules.json", [FIRST | {"path": "0_Transformer"}, SECOND], "the path of Transformer is '0_Transformer'"),
        ("modules.json", [FIRST, SECOND | {"path": "../1_Pooling"}], r"the path of Pooling is '\.\./1_Pooling'"),
        ("modules.json", [FIRST | {"type": "custom.Transformer"}, SECOND], "module 0 is custom.Transformer"),
        ("modules.json", {"0": FIRST}, "not a list of modules"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "'median' is no pooling mode; known: cls, max"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "no pooling mode; known: cls, max"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "supported is sentence_embedding"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length is 'long', not a number of tokens"),
        ("sentence_bert_config.json", {"model_args": {"x": 1}}, "model_args is {'x': 1}, which is not supported"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "the model is a SparseEncoder"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'euclidean'"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
            "default_prompt_name 'query' puts a prompt before each text",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": ["q: "], "default_prompt_name": "query"},
            "default_prompt_name 'query' puts a prompt before each text",
        ),
    ],
)
def test_what_would_give_other_embeddings_is_refused(tmp_path: Path, file: str, content: Any, message: str) -> None:
    write_encoder(tmp_path, normalized=True)
    edit(tmp_path, file, content)
    with pytest.raises(InputError, match=message):
        get_family(FAMILY).check(tmp_path, open_checkpoint(tmp_path))


def test_missing_files_and_prompts_that_are_not_pooled_are_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    edit(tmp_path, "1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False})
    open_network(FAMILY, tmp_path)
    edit(tmp_path, "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    for file, message in (
        ("", "include_prompt: false leaves the prompts"),
        ("1_Pooling/config.json", "missing, and says how the model pools"),
        ("modules.json", "no modules.json, which says how a sentence encoder pools its tokens"),
    ):
        if file:
            (tmp_path / file).unlink()
        with pytest.raises(InputError, match=message):
            open_network(FAMILY, tmp_path)


def test_harmless_settings_are_let_be(tmp_path: Path) -> None:
    """As sentence-transformers 6 writes them, and the dot product of vectors of length 1."""
    write_encoder(tmp_path, normalized=True)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    said = {"transformer_task": "feature-extraction", "modality_config": {"text": text, "message": {"format": "flat"}}}
    edit(tmp_path, "sentence_bert_config.json", said | {"module_output_name": "token_embeddings"})
    edit(
        tmp_path,
        "config_sentence_transformers.json",
        {"similarity_fn_name": "dot", "prompts": {"document": ""}, "default_prompt_name": "document"},
    )
    edit(tmp_path, "2_Normalize/config.json", {"module_input_name": "sentence_embedding"})
    loaded(tmp_path)


def test_a_tasks_own_pooling_and_length_are_those_of_its_own_model(tmp_path: Path) -> None:
    write_encoder(tmp_path / "base", max_seq_length=20)
    write_encoder(tmp_path / "task", modes=["cls"], seed=1)
    write_encoder(tmp_path / "same", seed=2, old=False, max_seq_length=20)
    assert write_own(tmp_path / "base", tmp_path / "task", tmp_path / "own")
    found = open_network(FAMILY, tmp_path / "own")
    found.load(state_of(tmp_path / "task").items())
    expected = torch.from_numpy(embeddings_one_by_one(tmp_path / "task", TEXTS, ["cls"]))
    torch.testing.assert_close(found.logits(found.encode(TEXTS, 30)), expected)  # type: ignore[attr-defined]
    assert found.longest == 30  # type: ignore[attr-defined]
    assert not write_own(tmp_path / "base", tmp_path / "same", tmp_path / "none")
    settings = json.loads((tmp_path / "same/tokenizer_config.json").read_text())
    edit(tmp_path / "same", "tokenizer_config.json", settings | {"model_max_length": 8})
    edit(tmp_path / "same", "sentence_bert_config.json", {})
    assert write_own(tmp_path / "base", tmp_path / "same", tmp_path / "shorter")
    assert open_network(FAMILY, tmp_path / "shorter").longest == 8  # type: ignore[attr-defined]


def test_the_family_follows_from_what_the_tasks_models_are_for(tmp_path: Path) -> None:
    write_encoder(tmp_path / "base")
    write_encoder(tmp_path / "task", seed=1)
    write_model(tmp_path / "classifier", "bert", 3)
    write_model(tmp_path / "plain", "bert")
    (tmp_path / "adapter").mkdir()
    edit(tmp_path / "adapter", "adapter_config.json", {"task_type": "FEATURE_EXTRACTION"})
    base, task, adapter = (tmp_path / name for name in ("base", "task", "adapter"))
    assert family_of(base, [task]) == family_of(base, [adapter, task]) == FAMILY
    assert family_of(base) == family_of(base, [tmp_path / "classifier"]) == "encoder"
    assert family_of(tmp_path / "plain", [task]) == "encoder"  # without a pooling
    assert library_of(base, None) == library_of(base, FAMILY) == ("sentence-transformers", "sentence-similarity")
    assert library_of(base, "encoder")[0] == "transformers"
    assert bytes_a_value(base) == 4
    fetch_model(base, tmp_path / "fetched")
    torch.testing.assert_close(
        *(loaded(folder).logits(loaded(base).encode(TEXTS, 30)) for folder in (base, tmp_path / "fetched"))
    )
