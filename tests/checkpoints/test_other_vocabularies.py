"""Models of other vocabularies: rows are matched by token, held to a plain computation by token, and generate."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.errors import InputError
from tests.merges import merge_checkpoints
from tests.transformers_models import save_bin
from tests.worded_models import BYTES, LETTERS, MODELS, PARTS, PIECES, ROWS, SPECIAL, Words, drawn, save, tokenizer

SCALING = 0.5
TEMPLATE = "{} {{% for message in messages %}}{{{{ message.content }}}}{{% endfor %}}"


@dataclass(frozen=True)
class Pair:
    """Models of other vocabularies, whose tokenizer the merge has, and its tokens in the order of their numbers."""

    base: Words
    tasks: Mapping[str, Words]
    choice: str
    merged: Words
    kind: str = "words"
    model: str = "tied"
    tokens: Mapping[str, str] = field(default_factory=dict)


X, Y = "<x>", "<y>"
MORE, OTHERS = Words([*LETTERS, X]), Words([*LETTERS, Y])
PERMUTED = Words([*SPECIAL, *"hgfedcba"])
PAIRS = {
    "permuted": Pair(Words(LETTERS), {"a": PERMUTED, "b": Words(LETTERS)}, "base", Words(LETTERS)),
    "permuted, as a task has it": Pair(Words(LETTERS), {"a": PERMUTED, "b": MORE}, "a", PERMUTED, model="untied"),
    "added by one": Pair(Words(LETTERS), {"a": MORE, "b": Words(LETTERS)}, "union", MORE),
    "added by both": Pair(Words(LETTERS), {"a": MORE, "b": MORE}, "union", MORE, model="untied"),
    "another in one row": Pair(Words(LETTERS), {"a": MORE, "b": OTHERS}, "union", Words([*LETTERS, X, Y]),
        model="untied"),
    "padded": Pair(Words(LETTERS, 16), {"a": Words(MORE.tokens, 16), "b": Words(OTHERS.tokens, 16)}, "union",
        Words([*LETTERS, X, Y], 16)),
    "resized to 64": Pair(Words(LETTERS), {"a": Words(MORE.tokens, 64), "b": Words(LETTERS, 32)}, "a",
        Words(MORE.tokens, 64)),
    "one as it is": Pair(Words(LETTERS), {"a": Words([X, *LETTERS, Y], 16), "b": OTHERS}, "b", OTHERS, model="untied"),
    "a token by rule": Pair(Words(LETTERS), {"a": MORE, "b": MORE}, "union", MORE,
        tokens={X: "b", "a": "base", "c": "a"}),
    "WordPiece": Pair(Words(PARTS), {"a": Words([*PARTS, "cd", X]), "b": Words([*PARTS, Y, "##ef"], 32)}, "union",
        Words([*PARTS, "cd", X, Y, "##ef"]), "parts", "bert"),
    "Unigram": Pair(Words(PIECES), {"a": Words([*PIECES, X]), "b": Words([*PIECES, "▁ef", Y])}, "union",
        Words([*PIECES, X, "▁ef", Y]), "pieces", "bart"),
    "byte-level BPE": Pair(Words(BYTES, 16), {"a": Words([*BYTES, X], 24), "b": Words([*BYTES, "cd", X, Y])}, "union",
        Words([*BYTES, X, "cd", Y], 16), "bytes", "gpt2"),
}  # fmt: skip


def expected(rows: Mapping[str, ROWS], table: str, token: str, rule: str | None) -> Tensor:
    """Merge one token's rows by task arithmetic."""
    base, *tasks = (each[table].get(token) for each in rows.values())
    if rule is not None:
        return rows[rule][table][token]
    owned = [row for row in tasks if row is not None]
    start = torch.stack(owned).mean(0) if base is None else base
    return start + SCALING * sum(row - start for row in owned)


@pytest.mark.parametrize("name", PAIRS)
def test_rows_are_merged_by_token(tmp_path: Path, name: str) -> None:
    pair = PAIRS[name]
    own = {"base": pair.base, **pair.tasks}
    rows = {task: save(tmp_path / task, pair.model, words, task, pair.kind) for task, words in own.items()}
    tasks, choice = {task: tmp_path / task for task in pair.tasks}, TokenizerChoice(pair.choice, pair.tokens)
    merge_checkpoints(
        "task_arithmetic", {"scaling": SCALING}, tmp_path / "base", tasks, tmp_path / "out", choice=choice
    )
    made, _, _, tables = MODELS[pair.model]
    model, info = made.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    words = tf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words.convert_ids_to_tokens(list(range(len(words)))) == list(pair.merged.tokens)
    for token in set(pair.merged.tokens) - set(pair.base.tokens):
        assert token in words.tokenize(token.replace("##", "ab").replace("▁", ""))
    numbers = model.config.vocab_size, model.config.pad_token_id, model.config.eos_token_id
    assert numbers == (pair.merged.size, words.pad_token_id, words.eos_token_id)
    for table in tables:
        merged = model.state_dict()[table]
        merged = merged.movedim(merged.shape.index(pair.merged.size), 0)
        for token, row in zip(pair.merged.tokens, merged, strict=False):
            torch.testing.assert_close(
                row, expected(rows, table, token, pair.tokens.get(token)), msg=f"{table} {token}"
            )


def test_a_model_that_ties_its_head_has_no_row_for_a_token_that_it_lacks(tmp_path: Path) -> None:
    kinds = {"base": ("untied", Words(LETTERS)), "a": ("untied", MORE), "b": ("tied", OTHERS)}
    rows = {task: save(tmp_path / task, kind, words, task, "words") for task, (kind, words) in kinds.items()}
    embedding, head = MODELS["untied"][3]
    rows["b"][head] = rows["b"][embedding]
    tasks, out = {task: tmp_path / task for task in "ab"}, tmp_path / "out"
    merge_checkpoints(
        "task_arithmetic", {"scaling": SCALING}, tmp_path / "base", tasks, out, choice=TokenizerChoice("union")
    )
    merged = load_file(out / "model.safetensors")
    for table in (embedding, head):
        for token, row in zip([*LETTERS, X, Y], merged[table], strict=True):
            torch.testing.assert_close(row, expected(rows, table, token, None), msg=f"{table} {token}")


def test_a_head_of_its_own_is_not_lost_on_a_base_that_ties_it(tmp_path: Path) -> None:
    for task, kind, words in (("base", "tied", Words(LETTERS)), ("a", "untied", MORE)):
        save(tmp_path / task, kind, words, task, "words")
    with pytest.raises(InputError, match=r"a: the parameter lm_head.weight is not in the base: it ties it to"):
        merge_checkpoints(
            "average", {}, tmp_path / "base", {"a": tmp_path / "a"}, tmp_path / "out", choice=TokenizerChoice("base")
        )


def spoken(folder: Path, known: Sequence[str]) -> list[str]:
    """Give what a model generates of tokens that are known, after a prompt by its own tokenizer and chat template."""
    words, model = tf.AutoTokenizer.from_pretrained(folder), tf.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = words.apply_chat_template([{"role": "user", "content": "a c d"}], tokenize=False)
    others = [row for row in range(model.config.vocab_size) if words.convert_ids_to_tokens(row) not in known]
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "suppress_tokens": others or None}
    made = model.generate(words(prompt, return_tensors="pt").input_ids, **how)[0]
    return list(words.convert_ids_to_tokens(made))


@pytest.mark.parametrize(("choice", "kind"), [("union", "tied"), ("a", "untied"), ("b", "tied")])
def test_a_merge_of_one_task_generates_what_the_task_does(tmp_path: Path, choice: str, kind: str) -> None:
    own = {"base": Words(LETTERS, 16), "a": Words([X, *reversed(LETTERS)], 24), "b": OTHERS}
    for task, words in own.items():
        save(tmp_path / task, kind, words, task, "words")
        (tmp_path / task / "chat_template.jinja").write_text(TEMPLATE.format({"a": X, "b": Y}.get(task, "")))
    tasks = {task: tmp_path / task for task in "ab"}
    for task in tasks if choice == "union" else choice:
        values = {"scaling": 1.0, "coefficients": {"a": 0.0, "b": 0.0, task: 1.0}}
        out, how = tmp_path / f"merged-{task}", TokenizerChoice(choice, chat_template=task)
        notes = merge_checkpoints("task_arithmetic", values, tmp_path / "base", tasks, out, choice=how)
        said = spoken(out, own[task].tokens)
        assert said == spoken(tmp_path / task, own[task].tokens)
        assert len(set(said)) > 4
        assert f"{'ba'['ab'.index(task)]}: its chat template is not that of the merge" in notes


def train(adapted: Any, folder: Path) -> None:
    """Change what an adapter has of its own, and save it."""
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.add_(drawn(name, shape=parameter.shape, size=0.05))
    adapted.save_pretrained(str(folder))


def test_an_adapter_with_resized_embeddings_is_merged_by_token(tmp_path: Path) -> None:
    rows = {"base": save(tmp_path / "base", "untied", Words(LETTERS, 12), "base", "words")}
    model = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model.resize_token_embeddings(16, mean_resizing=False)
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], modules_to_save=["embed_tokens", "lm_head"])
    tuned = get_peft_model(model, config)
    train(tuned, tmp_path / "a")
    own = Words([*LETTERS, X, Y], 16)
    tokenizer(own, "words").save_pretrained(tmp_path / "a")
    rows["b"] = save(tmp_path / "b", "untied", OTHERS, "b", "words")
    whole, tables = tuned.merge_and_unload().state_dict(), MODELS["untied"][3]
    rows["a"] = {table: dict(zip(own.tokens, whole[table], strict=False)) for table in tables}
    tasks, out, values = {"a": tmp_path / "a", "b": tmp_path / "b"}, tmp_path / "out", {"scaling": SCALING}
    with pytest.raises(InputError, match=r"has 16 rows, the base's 12: .*; match rows by token: --tokenizer union, or"):
        merge_checkpoints("task_arithmetic", values, tmp_path / "base", tasks, out)
    merge_checkpoints("task_arithmetic", values, tmp_path / "base", tasks, out, choice=TokenizerChoice("union"))
    merged = tf.AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert tf.AutoTokenizer.from_pretrained(out).convert_ids_to_tokens(list(range(12))) == own.tokens
    for table in tables:
        for token, row in zip(own.tokens, merged[table], strict=False):
            torch.testing.assert_close(row, expected(rows, table, token, None), msg=f"{table} {token}")


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_a_low_rank_update_of_a_table_is_put_in_order(tmp_path: Path, target: str) -> None:
    save(tmp_path / "base", "untied", Words(LETTERS), "base", "words")
    tuned = get_peft_model(
        tf.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), LoraConfig(r=2, target_modules=[target])
    )
    train(tuned, tmp_path / "a")
    save(tmp_path / "b", "untied", PERMUTED, "base", "words")
    tasks, how = {"a": tmp_path / "a", "b": tmp_path / "b"}, TokenizerChoice("b")
    merge_checkpoints("task_arithmetic", {"scaling": 1.0}, tmp_path / "base", tasks, tmp_path / "out", choice=how)
    merged, whole = (
        model.state_dict()
        for model in (tf.AutoModelForCausalLM.from_pretrained(tmp_path / "out"), tuned.merge_and_unload())
    )
    for table in MODELS["untied"][3]:
        ordered = [whole[table][LETTERS.index(token)] for token in PERMUTED.tokens]
        torch.testing.assert_close(merged[table], torch.stack(ordered))


def test_sentencepiece_alone_shards_and_torch_weights_are_matched(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("hello world this is a test\nthe quick brown fox\n" * 20)
    pieces = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "vocab_size": 40, "hard_vocab_limit": False}
    made = {"input": str(tmp_path / "texts"), "model_prefix": str(tmp_path / "made"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**made, **pieces)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    tables = {}
    for seed, task in enumerate(("base", "a", "b")):
        folder = tmp_path / task
        folder.mkdir()
        shutil.copy(tmp_path / "made.model", folder / "spiece.model")
        settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "eos_token": "</s>", "pad_token": "<pad>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        words = tf.AutoTokenizer.from_pretrained(folder)
        if task == "b":
            (folder / "spiece.model").unlink()
            words.add_tokens([X])
            words.save_pretrained(folder)
        torch.manual_seed(seed)
        model = tf.T5ForConditionalGeneration(tf.T5Config(**sizes, vocab_size=len(words)))
        tables[task] = model.state_dict()["shared.weight"]
        if task == "a":
            save_bin(model, folder)
        else:
            model.save_pretrained(folder, max_shard_size="4KB")
    models, out = {task: tmp_path / task for task in "ab"}, tmp_path / "out"
    merge_checkpoints("average", {}, tmp_path / "base", models, out, choice=TokenizerChoice("union"))
    shards = [len(list(folder.glob("*.safetensors"))) for folder in (out, tmp_path / "base")]
    assert shards[0] == shards[1] > 1
    words, model = tf.AutoTokenizer.from_pretrained(out), tf.T5ForConditionalGeneration.from_pretrained(out)
    assert words.tokenize(f"the fox{X}") == [*tf.AutoTokenizer.from_pretrained(tmp_path / "a").tokenize("the fox"), X]
    mean = (tables["a"] + tables["b"][:-1]) / 2
    torch.testing.assert_close(model.state_dict()["shared.weight"], torch.cat([mean, tables["b"][-1:]]))


def test_modules_beside_a_model_stay_with_it(tmp_path: Path) -> None:
    for seed, task in enumerate(("base", "a")):
        save(tmp_path / task, "bert", Words(PARTS if task == "base" else [*PARTS, X]), task, "parts")
        for module in ("2_Dense", "projection"):
            (tmp_path / task / module).mkdir()
            save_file(
                {"linear.weight": torch.full((4, 16), float(seed))}, tmp_path / task / module / "model.safetensors"
            )
    how = {"choice": TokenizerChoice("union"), "device": "cpu"}
    merge_checkpoints("average", {}, tmp_path / "base", {"a": tmp_path / "a"}, tmp_path / "out", **how)
    for module in ("2_Dense", "projection"):
        assert load_file(tmp_path / "out" / module / "model.safetensors")["linear.weight"].unique().tolist() == [1.0]
