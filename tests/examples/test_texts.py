"""What the text suites draw: a function of its arguments, labelled rightly, with splits that share no text."""

import re

import pytest

from texts import drawing
from texts.drawing import SPLITS, digest, draw, draw_pretraining, split_of, vocabulary
from texts.lexicon import NAMES, NEGATIVE, NUMBERS, PLURALS, POSITIVE, SUBJECTS
from texts.tasks import TASKS, agree, entail
from texts.tokenizer import SPECIAL, causal_tokenizer, encoder_tokenizer

# Whatever the version of Python: what is drawn for seed 3.
DRAWN = {
    "review": "7e027ec5",
    "topic": "85a361c0",
    "agree": "697f8485",
    "entail": "61585718",
    "role": "e9de2ce2",
    "count": "0c7e4e1e",
}


@pytest.mark.parametrize("task", TASKS)
def test_what_is_drawn_is_a_function_of_seed_task_and_split(task: str) -> None:
    drawn = {(split, seed): digest(draw(task, split, seed, 50)) for split in SPLITS for seed in (0, 1)}
    assert drawn == {(split, seed): digest(draw(task, split, seed, 50)) for split, seed in drawn}
    assert len(set(drawn.values())) == len(drawn)
    assert digest(draw(task, "test", 3, 20))[:8] == DRAWN[task]


@pytest.mark.parametrize("task", TASKS)
def test_no_text_of_the_test_or_of_validation_is_in_another_split_or_in_pretraining(task: str) -> None:
    sizes = {"train": 3000, "validation": 250, "test": 500}
    texts = {split: [x.text for x in draw(task, split, 0, count)] for split, count in sizes.items()}
    texts["pretrain"] = [x.text for x in draw_pretraining(task, 0, 3000, 0.4)]
    for split in ("validation", "test"):
        assert len(set(texts[split])) == len(texts[split])
        assert not any(set(texts[split]) & set(texts[other]) for other in texts if other != split)
    assert {split_of(text) for text in texts["pretrain"]} == {"train"}


@pytest.mark.parametrize("task", TASKS)
def test_no_answer_is_rare(task: str) -> None:
    answers = [example.answer for example in draw(task, "test", 0, 600)]
    shares = [answers.count(number) / 600 for number in range(task == "count", len(TASKS[task].ANSWERS))]
    assert min(shares) > (0.01 if task == "count" else 0.5 / len(shares))


def test_more_different_texts_than_there_are_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_MISSES", 20)
    with pytest.raises(ValueError, match="role has no 3000 different texts"):
        draw("role", "test", 0, 3000)


def test_a_review_is_labelled_by_what_its_main_clause_says() -> None:
    for text, _, answer in draw("review", "train", 0, 300):
        if main := re.search(r", but the \w+ was (\w+)", text):
            assert (main[1] in NEGATIVE, main[1] in POSITIVE) == (answer == 0, answer == 2)


def test_a_topic_is_what_was_discussed() -> None:
    for text, _, answer in draw("topic", "train", 0, 300):
        if found := re.search(r"we discussed the (\w+) rather", text):
            assert found[1] in SUBJECTS[TASKS["topic"].ANSWERS[answer]]


def test_a_verb_agrees_with_the_noun_before_the_relative_clause() -> None:
    for text, _, answer in draw("agree", "train", 0, 300):
        if found := re.search(r"the (\w+) who \w+ the", text):
            assert (found[1] in PLURALS) == (agree.ANSWERS[answer] == "are")


def test_the_verdicts_are_those_of_logic() -> None:
    """Of worlds with two things of the noun, some of which do it: what holds in all, in none, in some of them."""
    holds = [lambda n: n == 2, lambda n: n > 0, lambda n: n == 0, lambda n: n < 2]
    for p, premise in enumerate(holds):
        for h, hypothesis in enumerate(holds):
            seen = {hypothesis(n) for n in range(3) if premise(n)}
            assert entail.VERDICTS[p][h] == {(True,): 0, (False,): 2}.get(tuple(seen), 1)


def test_a_role_is_the_one_the_question_asks_for() -> None:
    for text, question, answer in draw("role", "train", 0, 300):
        if found := re.search(r"(\w+) was (\w+) by (\w+)", text):
            assert NAMES[answer] == (found[3] if question and "somebody" in question else found[1])


def test_a_count_is_what_is_left() -> None:
    for text, _, answer in draw("count", "train", 0, 300):
        if found := re.search(r"had (\w+) \w+ but lost (\w+)", text):
            assert answer == NUMBERS.index(found[1]) - NUMBERS.index(found[2])


def test_the_tokenizers_know_every_word_of_every_text() -> None:
    words = {
        word for task in TASKS for x in draw(task, "train", 5, 500) for word in f"{x.text} {x.second or ''}".split()
    }
    assert words <= set(vocabulary())
    for tokenizer in (encoder_tokenizer(), causal_tokenizer()):
        assert len(tokenizer) == len(vocabulary()) + len(SPECIAL)
        assert tokenizer.unk_token_id not in tokenizer(sorted(words))["input_ids"]
        assert tokenizer.pad_token_id == SPECIAL["<pad>"]


def test_the_encoder_s_tokenizer_puts_pairs_between_special_tokens_and_the_causal_one_adds_none() -> None:
    pair = encoder_tokenizer()("all dogs run", "some dogs run")["input_ids"]
    assert [pair[0], *pair[4:6], pair[-1]] == [0, 2, 2, 2]
    prompt = causal_tokenizer()("the answer is yes </s>")["input_ids"]
    assert prompt == [*causal_tokenizer()("the answer is yes", add_special_tokens=False)["input_ids"], 2]
