"""`--tokenizer union` on tokenizers laid out as those of Llama 3, Qwen and Mistral: each token keeps its row."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers as tf
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.errors import InputError
from tests.merges import merge_checkpoints
from tests.transformers_models import DECODER
from tests.worded_models import drawn

TABLE = "model.embed_tokens.weight"
MERGES = [("a", "b"), ("c", "d")]


def byte_level(words: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Give the words and the merges of a byte-level BPE; further words are each one letter more than one before."""
    merges = [*MERGES, *((word[:-1], word[-1]) for word in words)]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    return {token: number for number, token in enumerate(tokens)}, merges


def llama_3(words: Sequence[str], added: Sequence[str]) -> Any:
    """Added tokens above the model's words, words of the vocabulary taken whole, and a token that begins each text."""
    vocabulary, merges = byte_level(words)
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", *added])
    begin = made.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


def qwen(words: Sequence[str], added: Sequence[str]) -> Any:
    """Added tokens above the model's words, of transformers' own class."""
    vocabulary, merges = byte_level(words)
    made = tf.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *added]
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens], special_tokens=True)
    return made


def mistral(words: Sequence[str], added: Sequence[str]) -> Any:
    """Control tokens at the beginning, bytes for what is unknown; added ones above all."""
    own = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    merges = [*MERGES, *((word[:-1], word[-1]) for word in words)]
    tokens = [*own, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh", *("".join(pair) for pair in merges)]
    numbers = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([*own, *added])
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def save(folder: Path, tokenizer: Any, place: str, rows: int = 0, **settings: object) -> dict[str, Any]:
    """Save a Llama with a row for each token; return the rows by token."""
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER | {"vocab_size": rows or len(tokenizer)}))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(drawn(place, name, shape=parameter.shape))
    tf.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if settings:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))
    table = model.state_dict()[TABLE]
    return {token: table[number].clone() for token, number in tokenizer.get_vocab().items() if number < len(table)}


@pytest.mark.parametrize("make", [llama_3, qwen, mistral])
@pytest.mark.parametrize(
    ("of_base", "words", "added"),
    [([], [], ["<|tool|>"]), ([], ["abc"], []), (["<user>"], ["abc", "abcd"], ["<|tool|>", "<bot>"])],
)
def test_each_token_of_a_union_has_its_own_row(
    tmp_path: Path, make: Callable[..., Any], of_base: list[str], words: list[str], added: list[str]
) -> None:
    save(tmp_path / "base", make([], of_base), "base")
    one = save(tmp_path / "one", make([], of_base), "one")
    two = save(tmp_path / "two", make(words, [*of_base, *added]), "two")
    tasks, out = {name: tmp_path / name for name in ("one", "two")}, tmp_path / "out"
    merge_checkpoints("average", {}, tmp_path / "base", tasks, out, choice=TokenizerChoice("union"))
    table = load_file(out / "model.safetensors")[TABLE]
    numbers = tf.AutoTokenizer.from_pretrained(out).get_vocab()
    base = load_file(tmp_path / "base" / "model.safetensors")[TABLE]
    lead = tf.AutoTokenizer.from_pretrained(tmp_path / "base").get_vocab()
    assert {token: numbers[token] for token in lead} == lead
    assert len(numbers) == len(lead) + len(words) + len(added) == len(table)
    for token, number in numbers.items():
        start = base[lead[token]] if token in lead else two[token]  # a model without a token has the reference's row
        mean = (one.get(token, start) + two[token]) / 2
        assert (table[number] - mean).abs().max() < 1e-6, token


def test_tokens_without_a_row_are_named_and_a_union_gives_them_the_rows_that_a_task_has(tmp_path: Path) -> None:
    words = mistral([], ["<user>"])
    save(tmp_path / "base", words, "base", rows=len(words) - 1)
    one = save(tmp_path / "one", words, "one")
    save(tmp_path / "two", words, "two", rows=len(words) - 1, pad_token_id=len(words))
    tasks = {name: tmp_path / name for name in ("one", "two")}
    out, how = tmp_path / "union", TokenizerChoice("union")
    notes = merge_checkpoints("average", {}, tmp_path / "base", tasks, out, choice=how)
    assert "two: has no '<user>': a row stays the base's for it" in notes
    table = load_file(out / "model.safetensors")[TABLE]
    assert len(table) == len(words)
    assert (table[-1] - one["<user>"]).abs().max() < 1e-6
    notes = merge_checkpoints(
        "average", {}, tmp_path / "base", tasks, tmp_path / "of-base", choice=TokenizerChoice("base")
    )
    rows = len(words) - 1
    assert f"the base: its tokenizer has tokens without a row in its embeddings of {rows} rows: '<user>'" in notes
    notes = merge_checkpoints("average", {}, tmp_path / "base", {"two": tmp_path / "two"}, tmp_path / "one-model")
    assert f"two: config.json: pad_token_id is {rows + 1}, and its embeddings have {rows} rows" in notes


def test_a_token_that_a_configuration_names_by_its_number_keeps_its_meaning(tmp_path: Path) -> None:
    base, task = mistral([], ["<image>", "<user>"]), mistral([], ["<user>", "<image>"])
    for name, words in (("base", base), ("one", task)):
        save(tmp_path / name, words, name, image_token_id=base.convert_tokens_to_ids("<image>"))
        (tmp_path / name / "processor_config.json").write_text(json.dumps({"image_token": "<image>"}))
    tasks, out = {"one": tmp_path / "one"}, tmp_path / "out"
    merge_checkpoints("average", {}, tmp_path / "base", tasks, out, choice=TokenizerChoice("base"))
    number = json.loads((out / "config.json").read_text())["image_token_id"]
    assert tf.AutoTokenizer.from_pretrained(out).convert_ids_to_tokens(number) == "<image>"
    (tmp_path / "one" / "processor_config.json").unlink()  # whose configuration says so of no token
    with pytest.raises(InputError, match=r"config.json: image_token_id is .* its tokenizer gives '<image>'"):
        merge_checkpoints("average", {}, tmp_path / "base", tasks, tmp_path / "other", choice=TokenizerChoice("one"))
