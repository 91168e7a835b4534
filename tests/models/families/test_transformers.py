"""Each family of transformers against the models that transformers itself loads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.inferring import family_of
from merganser.errors import InputError
from merganser.models import Generates, Network, TakesTexts, get_family, open_network
from merganser.tasks.fetch import fetch_model
from tests.tiny_transformers import DECODERS, ENCODERS, FAMILIES, VOCABULARY, state_of, tokenizer, write_model
from tests.transformers_models import tiny

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TEXTS = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat"]
PAIRS = [("the cat sat", "a dog ran"), ("yes", "no"), ("the red image", "a dark image of the mat")]
OPTIONS = ["yes", "no the red cat", "dog ."]


def loaded(kind: str, folder: Path, state: dict[str, Tensor] | None = None, **options: Any) -> Any:
    network = open_network(FAMILIES[kind], folder, **options)
    network.load((state or state_of(folder)).items())
    return network


def theirs_of(make: Any, folder: Path, precision: str) -> Any:
    """Load a model as transformers does; its own memory, not the file's, for the same order of additions in BLAS."""
    model = make.from_pretrained(folder, dtype=DTYPES[precision])
    for value in model.parameters():
        value.data = value.data.clone()
    return model


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of a tiny model, written once."""
    folders: dict[tuple[Any, ...], Path] = {}

    def written(kind: str, outputs: int | None = None, precision: str = "float32") -> Path:
        key = (kind, outputs, precision)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp(kind)
            write_model(folders[key], kind, outputs, DTYPES[precision])
        return folders[key]

    return written


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_a_classifiers_logits_are_those_of_transformers(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder = folder_of(kind, 3, precision)
    ours = loaded(kind, folder, outputs=3, precision=precision)
    theirs = theirs_of(AutoModelForSequenceClassification, folder, precision)
    encoded = ours.encode(PAIRS, 30)
    tokens = AutoTokenizer.from_pretrained(folder)(
        *map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        expected = theirs(**tokens).logits
        if kind == "roberta":
            scored = theirs.classifier(ours.features(encoded)[:, None])
        else:
            scored = getattr(theirs, "score" if kind in DECODERS else "classifier")(ours.features(encoded))
    assert torch.equal(ours.logits(encoded), expected)
    padded = {name: torch.nn.functional.pad(value, (0, 4)) for name, value in encoded.items()}
    assert torch.equal(ours.logits(padded), expected)
    torch.testing.assert_close(scored, expected)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", ["t5", "flan-t5"])
def test_the_logits_of_an_encoder_decoder_with_a_head_are_those_of_transformers(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder = folder_of(kind, 3, precision)
    get_family("seq2seq").check(folder, open_checkpoint(folder))
    ours = loaded(kind, folder, outputs=3, precision=precision)
    assert not isinstance(ours, Generates)
    theirs = theirs_of(AutoModelForSequenceClassification, folder, precision)
    tokens = tokenizer()(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**tokens).logits
        scored = theirs.classification_head(ours.features(ours.encode(TEXTS, 30)))
    assert torch.equal(ours.logits(ours.encode(TEXTS, 30)), expected)
    assert torch.equal(scored, expected)


def test_the_body_of_a_writer_takes_a_head_and_leaves_out_its_own_words(folder_of: Callable[..., Path]) -> None:
    writer, classifier = state_of(folder_of("flan-t5")), state_of(folder_of("flan-t5", 3))
    head = {name: value for name, value in classifier.items() if name.startswith("classification_head.")}
    merged = loaded("flan-t5", folder_of("flan-t5", 3), writer | head, outputs=3)
    whole = {f"transformer.{name}": value for name, value in writer.items() if name != "lm_head.weight"} | head
    own = loaded("flan-t5", folder_of("flan-t5", 3), whole, outputs=3)
    inputs = merged.encode(TEXTS, 30)
    assert torch.equal(merged.logits(inputs), own.logits(inputs))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", DECODERS)
def test_a_language_models_next_word_is_that_of_transformers(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder = folder_of(kind, None, precision)
    ours = loaded(kind, folder, precision=precision)
    theirs = theirs_of(AutoModelForCausalLM, folder, precision)
    made = AutoTokenizer.from_pretrained(folder)
    tokens = [made(text, return_tensors="pt") for text in TEXTS]
    with torch.inference_mode():
        each = torch.cat([theirs(**one, logits_to_keep=1).logits[:, -1] for one in tokens])
    assert torch.equal(ours.logits(ours.encode(TEXTS[:1], 30)), each[:1])
    if precision == "float32":
        together = ours.encode(TEXTS, 30)
        torch.testing.assert_close(ours.logits(together), each)
        with torch.inference_mode():
            torch.testing.assert_close(theirs.lm_head(ours.features(together)), each)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", ["t5", "flan-t5"])
def test_the_first_word_of_an_answer_is_that_of_transformers(
    folder_of: Callable[..., Path], kind: str, precision: str
) -> None:
    folder = folder_of(kind, None, precision)
    ours = loaded(kind, folder, precision=precision)
    theirs = theirs_of(AutoModelForSeq2SeqLM, folder, precision)
    tokens = tokenizer()(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**tokens, decoder_input_ids=torch.zeros(3, 1, dtype=torch.long)).logits[:, 0]
    assert torch.equal(ours.logits(ours.encode(TEXTS, 30)), expected)
    assert ours.features(ours.encode(TEXTS, 30)).shape == (3, 16)
    assert theirs.config.scale_decoder_outputs is (kind == "t5")


@pytest.mark.parametrize("kind", ["t5", "llama, untied", "gpt2"])
def test_texts_are_continued_and_options_weighed_as_transformers_does_one_by_one(
    folder_of: Callable[..., Path], kind: str
) -> None:
    folder = folder_of(kind)
    ours = loaded(kind, folder)
    assert isinstance(ours, Generates)
    assert isinstance(ours, TakesTexts)
    make = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    theirs, words = make.from_pretrained(folder), tokenizer(ends=kind == "t5")
    inputs = ours.encode(TEXTS, 30)
    for text, answer, weights in zip(TEXTS, ours.generate(inputs, 5), ours.rank(inputs, OPTIONS), strict=True):
        tokens = words(text, return_tensors="pt").input_ids
        written = theirs.generate(tokens, max_new_tokens=5, do_sample=False)[0]
        written = written if kind == "t5" else written[tokens.shape[1] :]
        assert answer == words.decode(written, skip_special_tokens=True)
        for option, weight in zip(OPTIONS, weights, strict=True):
            torch.testing.assert_close(weight, likelihood(theirs, tokens, option, kind == "t5"))


def test_a_prompt_that_is_too_long_keeps_its_end_and_a_text_to_classify_its_beginning(
    folder_of: Callable[..., Path],
) -> None:
    prompt = open_network("causal", folder_of("gpt2")).encode(TEXTS[:1], 4)
    text = open_network("causal", folder_of("gpt2", 3), outputs=3).encode(TEXTS[:1], 4)
    words = tokenizer(ends=False)
    assert words.decode(prompt["input_ids"][0]) == "on the mat ."
    assert words.decode(text["input_ids"][0]) == "the cat sat on"


def likelihood(model: Any, tokens: Tensor, option: str, answers: bool) -> Tensor:
    """Return an option's log-likelihood after one text, written plainly."""
    with torch.inference_mode():
        if answers:
            labels = tokenizer()(option, return_tensors="pt").input_ids
            logits = model(tokens, labels=labels).logits[0]
        else:
            labels = tokenizer()(option, return_tensors="pt", add_special_tokens=False).input_ids
            logits = model(torch.cat([tokens, labels], dim=1)).logits[0, tokens.shape[1] - 1 : -1]
    return torch.stack([row.log_softmax(-1)[label] for row, label in zip(logits, labels[0], strict=True)]).sum()


def stripped(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items()}


def test_names_of_the_inner_model_are_taken_with_and_without_its_prefix(folder_of: Callable[..., Path]) -> None:
    for kind, prefix, outputs in (
        ("gpt2", "transformer.", None),
        ("bert", "bert.", 2),
        ("llama, untied", "model.", None),
    ):
        folder = folder_of(kind, outputs)
        state, plain = state_of(folder), stripped(state_of(folder), prefix)
        whole, bare = loaded(kind, folder, outputs=outputs), loaded(kind, folder, plain, outputs=outputs)
        inputs = whole.encode(TEXTS, 30)
        assert torch.equal(whole.logits(inputs), bare.logits(inputs))
        assert set(whole.linear_maps()) <= set(state)
        assert set(bare.linear_maps()) <= set(plain)


def test_what_old_files_hold_beside_the_parameters_is_left_out(folder_of: Callable[..., Path]) -> None:
    folder, inner = folder_of("gpt2", 3), folder_of("bert", 3)
    extra = {"transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32), "lm_head.weight": torch.zeros(VOCABULARY, 16)}
    network = loaded("gpt2", folder, state_of(folder) | extra, outputs=3)
    assert torch.equal(
        network.logits(network.encode(TEXTS, 30)), loaded("gpt2", folder, outputs=3).logits(network.encode(TEXTS, 30))
    )
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in state_of(inner).items()
    } | {"bert.embeddings.position_ids": torch.arange(32)[None], "cls.predictions.bias": torch.zeros(VOCABULARY)}
    encoder = loaded("bert", inner, old, outputs=3)
    inputs = encoder.encode(TEXTS, 30)
    assert torch.equal(encoder.logits(inputs), loaded("bert", inner, outputs=3).logits(inputs))


def test_a_tied_parameter_may_be_absent_stand_alone_or_differ(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    folder = folder_of("t5")
    state = state_of(folder)
    assert "lm_head.weight" not in state
    network = loaded("t5", folder)
    inputs = network.encode(TEXTS, 30)
    expected = network.logits(inputs)
    shared = state["shared.weight"]
    alone = {name: value for name, value in state.items() if name != "shared.weight"}
    network.load((alone | {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared}).items())
    assert torch.equal(network.logits(inputs), expected)
    apart = state | {"lm_head.weight": shared.flip(0)}
    network.load(apart.items())
    write_model(tmp_path, "t5")
    save_file(apart, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        untied = theirs(**inputs, decoder_input_ids=torch.zeros(3, 1, dtype=torch.long)).logits[:, 0]
    assert torch.equal(network.logits(inputs), untied)
    assert not torch.equal(untied, expected)
    network.load(state.items())
    assert torch.equal(network.logits(inputs), expected)
    with pytest.raises(InputError, match=r"parameter shared\.weight of the architecture is missing"):
        network.load(alone.items())


def test_a_missing_strange_or_misshapen_parameter_is_named(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("bert", 3)
    state, network = state_of(folder), open_network("encoder", folder, outputs=3)
    without = {name: value for name, value in state.items() if name != "classifier.bias"}
    with pytest.raises(InputError, match=r"classifier\.bias of the architecture is missing"):
        network.load(without.items())
    with pytest.raises(InputError, match=r"parameter odd\.weight is not in the architecture .*BertFor"):
        network.load((state | {"odd.weight": torch.zeros(2)}).items())
    with pytest.raises(InputError, match=r"classifier\.bias has shape \[2\], config\.json says \[3\]"):
        network.load((state | {"classifier.bias": torch.zeros(2)}).items())
    with pytest.raises(InputError, match=r"bert\.pooler\.dense\.bias and pooler\.dense\.bias are one parameter"):
        network.load((state | {"pooler.dense.bias": state["bert.pooler.dense.bias"]}).items())


def run_with(network: Network, parameters: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
    """Load parameters and score, the plain way."""
    network.load(parameters.items())
    return network.logits(inputs)


@pytest.mark.parametrize(("kind", "outputs"), [("bert", 3), ("gpt2", 3), ("t5", None), ("llama, tied", None)])
def test_a_forward_pass_with_given_parameters_is_that_of_a_model_that_holds_them(
    folder_of: Callable[..., Path], kind: str, outputs: int | None
) -> None:
    folder = folder_of(kind, outputs)
    state = state_of(folder)
    moved = {name: value + 0.1 for name, value in state.items()}
    network = loaded(kind, folder, outputs=outputs)
    inputs = network.encode(TEXTS, 30)
    before = network.logits(inputs)
    given = {name: value.clone().requires_grad_() for name, value in moved.items()}
    scores = network.forward(given, inputs)
    scores.sum().backward()
    moving = [name for name, value in given.items() if value.grad is not None and value.grad.abs().sum() > 0]
    assert len(moving) > 0.8 * len(given)  # a T5 decoder's attention to one word has no choice
    assert torch.equal(network.logits(inputs), before)
    torch.testing.assert_close(scores.detach(), run_with(network, moved, inputs))


@pytest.mark.parametrize(("kind", "outputs"), [("bert", 3), ("gpt2", 3), ("flan-t5", None), ("llama, untied", None)])
def test_the_rows_that_a_linear_map_is_given_make_what_it_gives(
    folder_of: Callable[..., Path], kind: str, outputs: int | None
) -> None:
    folder = folder_of(kind, outputs)
    network = loaded(kind, folder, outputs=outputs)
    inputs, state = network.encode(TEXTS, 30), state_of(folder)
    rows: dict[str, list[Tensor]] = {}
    made: dict[str, list[Tensor]] = {}
    hooks = [
        network.module.get_submodule(name.removesuffix(".weight")).register_forward_hook(
            lambda part, _, out, name=name: made.setdefault(name, []).append(
                (out if part.bias is None else out - part.bias).flatten(0, -2)
            )
        )
        for name in network.linear_maps()
    ]
    with network.watch(lambda name, seen: rows.setdefault(name, []).append(seen)):
        network.logits(inputs)
    for hook in hooks:
        hook.remove()
    assert set(rows) == set(network.linear_maps()) == set(made)
    for name, seen in rows.items():
        weight = state[name] if network.linear_maps()[name] == "rows" else state[name].T
        torch.testing.assert_close(torch.cat(seen) @ weight, torch.cat(made[name]), rtol=1e-4, atol=1e-5)
    assert network.logits(inputs).isfinite().all()


def test_the_gram_matrix_of_what_is_watched_is_that_of_a_hook(folder_of: Callable[..., Path]) -> None:
    network = loaded("gpt2", folder_of("gpt2", 3), outputs=3)
    inputs, grams = network.encode(TEXTS, 30), dict[str, Tensor]()
    seen: list[Tensor] = []
    part = network.module.get_submodule("transformer.h.1.mlp.c_proj")
    hook = part.register_forward_pre_hook(lambda _, args: seen.append(args[0].reshape(-1, 64)))
    with network.watch(lambda name, rows: grams.__setitem__(name, rows.T @ rows)):
        network.forward({}, inputs)
    hook.remove()
    torch.testing.assert_close(grams["transformer.h.1.mlp.c_proj.weight"], seen[0].T @ seen[0])


def test_rows_are_given_while_it_runs_with_other_parameters(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("gpt2", 3)
    network, names = loaded("gpt2", folder, outputs=3), set[str]()
    inputs = network.encode(TEXTS, 30)
    with network.watch(lambda name, rows: names.add(name)):
        network.forward({name: value.clone() for name, value in state_of(folder).items()}, inputs)
    assert names == set(network.linear_maps())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_checkpoint_fits_its_own_family_and_the_others_name_it(folder_of: Callable[..., Path], kind: str) -> None:
    folder = folder_of(kind)
    checkpoint = open_checkpoint(folder)
    get_family(FAMILIES[kind]).check(folder, checkpoint)
    other = "seq2seq" if FAMILIES[kind] != "seq2seq" else "causal"
    with pytest.raises(InputError, match=f"not of the family {other}; set base.family to {FAMILIES[kind]}"):
        get_family(other).check(folder, checkpoint)


def test_a_checkpoint_that_does_not_fit_its_configuration_is_refused_from_its_headers(
    folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder = folder_of("bert", 3)
    save_file(state_of(folder) | {"odd": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="parameter odd is not in the architecture"):
        get_family("encoder").check(folder, open_checkpoint(tmp_path))
    cut = {name: value for name, value in state_of(folder).items() if "layer.1.output.dense.bias" not in name}
    save_file(cut, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"layer\.1\.output\.dense\.bias of the architecture is missing"):
        get_family("encoder").check(folder, open_checkpoint(tmp_path))
    without_head = {name: value for name, value in state_of(folder).items() if "classifier" not in name}
    save_file(without_head, tmp_path / "model.safetensors")
    get_family("encoder").check(folder, open_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("config.json", "auto_map", {"AutoModel": "m.M"}, "'auto_map' asks for code that came with the checkpoint"),
        ("tokenizer_config.json", "auto_map", {"AutoTokenizer": ["t.T", None]}, "'auto_map' asks for code"),
        ("config.json", "attn_implementation", "somebody/kernel", "asks for code of another repository"),
        ("config.json", "quantization_config", {"quant_method": "gptq"}, "a quantised checkpoint"),
        ("config.json", "num_attention_heads", 3, "transformers cannot"),
        ("config.json", "model_type", "nothing", "transformers cannot read it"),
    ],
)
def test_a_configuration_that_asks_for_code_or_cannot_be_built_is_refused(
    tmp_path: Path, file: str, key: str, value: Any, message: str
) -> None:
    write_model(tmp_path, "bert")
    content = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps(content | {key: value}))
    with pytest.raises(InputError, match=message):
        open_network("encoder", tmp_path)


def test_other_files_of_training_beside_it_are_let_be(tmp_path: Path) -> None:
    """As all-MiniLM-L6-v2 has them: what sentence-transformers writes, and lists where transformers has maps."""
    write_model(tmp_path / "model", "bert")
    beside = {
        "data_config.json": '[{"name": "pairs.jsonl", "lines": 10}]',
        "modules.json": '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]',
        "sentence_bert_config.json": '{"max_seq_length": 256, "do_lower_case": false}',
        "config_sentence_transformers.json": '{"__version__": {"sentence_transformers": "2.0.0"}}',
        "1_Pooling/config.json": '{"word_embedding_dimension": 384, "pooling_mode_mean_tokens": true}',
        "train_script.py": "raise SystemExit",
    }
    for name, text in beside.items():
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text(text)
    open_network("encoder", tmp_path / "model")
    fetch_model(tmp_path / "model", tmp_path / "fetched")
    open_network("encoder", tmp_path / "fetched")
    assert family_of(tmp_path / "model") == "encoder"


def test_a_folder_without_a_configuration_or_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json, which models of the family causal need"):
        open_network("causal", tmp_path)
    write_model(tmp_path, "gpt2")
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json nor another vocabulary"):
        open_network("causal", tmp_path)


def test_a_tokenizer_without_padding_pads_as_the_configuration_says_else_with_the_end(tmp_path: Path) -> None:
    write_model(tmp_path, "llama, untied", outputs=2)
    path, settings = tmp_path / "tokenizer_config.json", tmp_path / "config.json"
    named = json.loads(path.read_text())
    named.pop("pad_token")
    path.write_text(json.dumps(named))
    assert open_network("causal", tmp_path, outputs=2).tokenizer.pad_token == "<pad>"
    config = json.loads(settings.read_text())
    settings.write_text(json.dumps(config | {"pad_token_id": None}))
    ended = open_network("causal", tmp_path, outputs=2)
    assert ended.tokenizer.pad_token == "</s>"
    assert ended.module.config.pad_token_id == 2
    named.pop("eos_token")
    path.write_text(json.dumps(named))
    with pytest.raises(InputError, match=r"no padding token, which batches need; set base\.pad_token_id"):
        open_network("causal", tmp_path, outputs=2)


def test_a_tokenizer_of_sentencepiece_alone_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    write_model(tmp_path, "deberta-v3", outputs=2)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    names = {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS, *map(" ".join, PAIRS)] * 9),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=50,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        **names,
    )
    network = open_network("encoder", tmp_path, outputs=2)
    found = network.encode(PAIRS, 30)["input_ids"]  # type: ignore[attr-defined]
    assert network.tokenizer.decode(found[1], skip_special_tokens=True).split() == ["yes", "no"]  # type: ignore[attr-defined]


def test_a_distilbert_without_the_layers_of_a_classifier_is_a_base(tmp_path: Path) -> None:
    tiny("distilbert").distilbert.save_pretrained(tmp_path)
    get_family("encoder").check(tmp_path, open_checkpoint(tmp_path))
