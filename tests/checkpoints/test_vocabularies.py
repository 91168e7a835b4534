"""Tokenizers and chat templates of tasks, compared with the base's."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.vocabularies import any_vocabulary_of, division_of, vocabulary_of
from merganser.checkpoints.vocabulary.tokenizers import token_settings
from merganser.errors import InputError
from tests.transformers_models import save_models, tiny

WORDS = {"<pad>": 0, "a": 1, "b": 2, "c": 3}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    found = save_models(tmp_path, "llama, untied", tasks=1)
    for path in found.values():
        write(path, WORDS)
    return found


def write(folder: Path, words: dict[str, int], added: tuple[str, ...] = ()) -> None:
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))


def compared(paths: dict[str, Path]) -> list[str]:
    base, task = paths["base"], paths["task0"]
    return Agreement(base).check("task0", task, (open_checkpoint(base), open_model(task)))


def test_equal_tokenizers_need_no_word(paths: dict[str, Path]) -> None:
    assert compared(paths) == []


def test_a_token_with_another_number_is_refused(paths: dict[str, Path]) -> None:
    write(paths["task0"], {"<pad>": 0, "b": 1, "a": 2, "c": 3})
    expected = "task0: its tokenizer gives 'b' the number 1, that of the base 2, and 1 more tokens have others"
    with pytest.raises(InputError, match=expected):
        compared(paths)


def test_more_tokens_are_named_and_refused_where_the_embeddings_grew(paths: dict[str, Path]) -> None:
    write(paths["task0"], WORDS, ("<|start|>", "<|end|>"))
    difference = "its vocabulary differs from that of the base: it has '<|start|>', '<|end|>'"
    assert compared(paths) == [f"task0: {difference}; the merge has the base's tokenizer"]
    model = tiny("llama, untied")
    model.resize_token_embeddings(48)
    model.save_pretrained(paths["task0"])
    with pytest.raises(InputError) as refusal:
        compared(paths)
    assert "has 48 rows, the base's 40" in str(refusal.value)
    assert difference in str(refusal.value)


def test_a_row_that_two_tasks_added_other_tokens_in_is_named(tmp_path: Path) -> None:
    paths = save_models(tmp_path, "llama, untied", tasks=2)
    for path, added in zip(paths.values(), ("", "<x>", "<y>"), strict=True):
        write(path, WORDS, (added,) if added else ())
    base, agreement = open_checkpoint(paths["base"]), Agreement(paths["base"])
    found = [agreement.check(task, paths[task], (base, open_model(paths[task]))) for task in ("task0", "task1")]
    assert [len(notes) for notes in found] == [1, 2]
    assert found[1][1].startswith(
        "task1: row 4 is '<y>' in it and '<x>' in task0, and the merge mixes them; match rows"
    )


def test_a_renamed_token_is_named(paths: dict[str, Path]) -> None:
    write(paths["task0"], {"<pad>": 0, "a": 1, "b": 2, "<|start|>": 3})
    assert "it has '<|start|>'; it lacks 'c'" in compared(paths)[0]


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json"])
def test_another_chat_template_is_named(paths: dict[str, Path], where: str) -> None:
    for name, template in (("base", "{{ one }}"), ("task0", "{{ other }}")):
        text = template if where.endswith(".jinja") else json.dumps({"chat_template": template})
        (paths[name] / where).write_text(text)
    assert compared(paths) == ["task0: its chat template is not the base's, which the merge has"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", json.dumps(WORDS)),
        ("vocab.txt", "\n".join(WORDS)),
        ("tokenizer.json", json.dumps({"model": {"vocab": [[word, 0.0] for word in WORDS]}})),
    ],
)
def test_each_format_of_a_vocabulary_is_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert vocabulary_of(tmp_path) == WORDS


@pytest.mark.parametrize("number", [1, 9])
def test_a_number_that_transformers_ignores_is_not_taken_from_the_file(tmp_path: Path, number: int) -> None:
    write(tmp_path, WORDS, ("<x>",))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"][0]["id"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert any_vocabulary_of(tmp_path) == {**WORDS, "<x>": len(WORDS)}


NO_VOCABULARIES = ('{"added_tokens": []}', "[]", "nothing", '{"model": {"vocab": {"a": "x"}}}', '{"added_tokens": [1]}')


@pytest.mark.parametrize("content", NO_VOCABULARIES)
def test_a_broken_vocabulary_is_refused_by_name(tmp_path: Path, content: Any) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=str(tmp_path)):
        vocabulary_of(tmp_path)


@pytest.mark.parametrize("model", ["[]", '{"merges": 5}', '{"merges": [[1, 2]]}'])
def test_broken_merges_are_refused_by_name(tmp_path: Path, model: str) -> None:
    (tmp_path / "tokenizer.json").write_text(f'{{"model": {model}}}')
    if model == "[]":
        assert division_of(tmp_path) == {}
    else:
        with pytest.raises(InputError, match=str(tmp_path)):
            division_of(tmp_path)


def test_a_part_for_texts_that_is_no_map_has_no_token_settings(tmp_path: Path) -> None:
    content = {"text_config": ["eos_token_id"], "vocab_size": 3, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(content))
    taken = token_settings(tmp_path, tmp_path, {}, 5)
    assert taken["config.json"] == content | {"vocab_size": 5}
    assert taken["generation_config.json"]["eos_token_id"] == 2


def test_a_folder_without_a_vocabulary_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"sentencepiece")
    assert vocabulary_of(tmp_path) is None
