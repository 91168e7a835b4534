"""Answers in texts against a plain search through what transformers itself says of each window, and refused data."""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict, Features, List, Value
from tokenizers import processors
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from merganser.errors import InputError
from merganser.evaluation.metrics import squad_exact_match, squad_f1
from merganser.evaluation.scoring import score_of
from tests.evaluation.kinds.texts import check, run, sentences
from tests.tiny_transformers import WORDS, write_model

KIND, FAMILY = "question_answering", "reader"
COUNT = 12
WINDOWS = {"max_length": 30, "stride": 4}  # the tiny models read 32 tokens
SQUAD = {"text": List(Value("string")), "answer_start": List(Value("int32"))}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of an encoder that finds answers, whose texts begin with a token of their own."""
    folder = tmp_path_factory.mktemp("encoder")
    write_model(folder, "bert", 2, make=AutoModelForQuestionAnswering.from_config)
    words = AutoTokenizer.from_pretrained(folder)
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    words.cls_token = "<s>"
    words.save_pretrained(folder)
    return folder


def contexts() -> list[str]:
    """Draw texts of which some need several windows."""
    generator = np.random.default_rng(3)
    return ["  ".join(generator.choice(WORDS, size)) for size in generator.integers(2, 40, COUNT)]


def data_set(answers: Any = None, kind: Any = SQUAD, **columns: Any) -> DatasetDict:
    """Make the split `test`: drawn questions and texts, of each of which some words are right."""
    texts = contexts()
    if answers is None:
        answers = [
            {"text": [text[: 3 + row], text.split()[-1]], "answer_start": [0, 0]} for row, text in enumerate(texts)
        ]
    rows = {"question": sentences(COUNT, 1), "context": texts, "answers": answers} | columns
    kinds = {"question": Value("string"), "context": Value("string"), "answers": kind}
    return DatasetDict(test=Dataset.from_dict(rows, features=Features(kinds)))


def expected(model: Path, data: DatasetDict, most: int, allowed: bool = False, **windows: Any) -> list[str]:
    """Search all parts of all windows, one window at a time."""
    words, network = AutoTokenizer.from_pretrained(model), AutoModelForQuestionAnswering.from_pretrained(model)
    found = []
    for row in data["test"]:
        how = {"truncation": "only_second", "return_overflowing_tokens": True, "return_offsets_mapping": True}
        made = words(row["question"], row["context"], **how, **windows)
        parts, nothing = {"": -np.inf}, np.inf
        for number, tokens in enumerate(made.input_ids):
            with torch.inference_mode():
                scores = network(torch.tensor([tokens]))
            first, last = scores.start_logits[0].tolist(), scores.end_logits[0].tolist()
            nothing = min(nothing, first[0] + last[0])
            inside = [place for place, part in enumerate(made.sequence_ids(number)) if part == 1]
            for start in inside:
                for stop in (each for each in inside if start <= each < start + most):
                    offsets = made.offset_mapping[number]
                    text = row["context"][offsets[start][0] : offsets[stop][1]]
                    parts[text] = max(parts.get(text, -np.inf), first[start] + last[stop])
        best = max(parts, key=lambda text: parts[text])
        found.append("" if allowed and nothing > parts[best] else best)
    return found


@pytest.mark.parametrize("most", [30, 2])
def test_the_likeliest_part_is_found_in_the_windows_of_a_text(model: Path, tmp_path: Path, most: int) -> None:
    data = data_set()
    found = expected(model, data, most, **WINDOWS)
    references = [each["text"] for each in data["test"]["answers"]]
    for metric, measure in (("squad_f1", squad_f1), ("squad_exact_match", squad_exact_match)):
        own = {"max_answer_tokens": most, **WINDOWS}
        results = run(data, tmp_path / "data", model, KIND, metric, family=FAMILY, **own)
        assert np.array_equal(np.asarray(results.score), measure(found, references))
        assert score_of(metric, results)["value"] == measure(found, references).mean()
    assert 0 < squad_f1(found, references).mean() < 1


def test_a_question_may_have_no_answer(model: Path, tmp_path: Path) -> None:
    data = data_set([{"text": [], "answer_start": []}] * COUNT)
    missing = data_set([{"text": None, "answer_start": None}] * COUNT)
    for each in (data, missing):
        with pytest.raises(InputError, match="example 0 has no answer; `unanswerable: allow` counts none as the right"):
            run(each, tmp_path / "data", model, KIND, family=FAMILY)
    found = expected(model, data, 30, allowed=True, **WINDOWS)
    assert 0 < found.count("") < COUNT
    results = run(data, tmp_path / "data", model, KIND, family=FAMILY, unanswerable="allow", **WINDOWS)
    assert np.asarray(results.score).tolist() == squad_f1(found, [[""]] * COUNT).tolist()
    write_model(tmp_path / "plain", "bert", 2, make=AutoModelForQuestionAnswering.from_config)
    with pytest.raises(InputError, match=r"do not begin with a token whose score stands for no answer"):
        run(data, tmp_path / "data", tmp_path / "plain", KIND, family=FAMILY, unanswerable="allow", **WINDOWS)


def test_answers_may_be_plain_lists(model: Path, tmp_path: Path) -> None:
    squad = data_set()
    plain = data_set([each["text"] for each in squad["test"]["answers"]], List(Value("string")))
    ours, theirs = (run(each, tmp_path / "data", model, KIND, family=FAMILY, **WINDOWS) for each in (plain, squad))
    assert np.array_equal(np.asarray(ours.score), np.asarray(theirs.score))
    assert np.array_equal(np.asarray(ours.label), np.asarray(theirs.label))


def test_an_answer_without_a_value_is_refused(model: Path, tmp_path: Path) -> None:
    data = data_set([["a"]] * (COUNT - 1) + [["a", None]], List(Value("string")))
    with pytest.raises(InputError, match=f"example {COUNT - 1} has an empty value among its answers; leave it out"):
        run(data, tmp_path / "data", model, KIND, family=FAMILY, **WINDOWS)


def test_a_question_without_room_for_its_text_is_refused(model: Path, tmp_path: Path) -> None:
    long = data_set(question=["the cat " * 20] * COUNT)
    with pytest.raises(
        InputError, match=r"the questions leave no room for their contexts; set a larger data\.max_length"
    ):
        run(long, tmp_path / "data", model, KIND, family=FAMILY, max_length=16, stride=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_set().rename_column("context", "passage"), r"has no column 'context'; it has .*data\.columns"),
        (data_set([["a"]] * COUNT, List(Value("string"))).cast_column("answers", List(Value("string"))), None),
        (data_set(["a"] * COUNT, Value("string")), "the column 'answers' holds neither lists of texts, nor SQuAD's"),
        (data_set([[1]] * COUNT, List(Value("int64"))), "the column 'answers' holds neither lists of texts"),
    ],
)
def test_data_that_is_not_of_the_kind_is_refused(data: Any, message: str | None) -> None:
    if message is None:
        check(data, KIND)
        return
    with pytest.raises(InputError, match=message):
        check(data, KIND)


def official(text: str) -> list[str]:
    """Normalise an answer by the steps of SQuAD's evaluation script, in its order: case, punctuation, articles."""
    kept = "".join(" " if sign.isspace() else sign for sign in text.lower() if sign not in set(string.punctuation))
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def test_the_metrics_are_those_of_squads_script() -> None:
    generator, some = np.random.default_rng(0), ["The", "a", "cat.", "Cat", "sat", "on-", "1/2", "mat", "an", "mat!"]
    texts = [" ".join(generator.choice(some, generator.integers(0, 5))) for _ in range(400)]
    references = [
        [" ".join(generator.choice(some, generator.integers(0, 5))) for _ in range(1 + n % 3)] for n in range(400)
    ]
    exact, overlap = [], []
    for text, given in zip(texts, references, strict=True):
        found, scores = official(text), []
        for reference in map(official, given):
            common = sum(min(found.count(word), reference.count(word)) for word in set(found))
            precision, recall = common / max(len(found), 1), common / max(len(reference), 1)
            mean = 2 * precision * recall / (precision + recall) if common else 0.0
            scores.append(mean if found and reference else float(found == reference))
        exact.append(float(any(found == official(reference) for reference in given)))
        overlap.append(max(scores))
    assert squad_exact_match(texts, references).tolist() == exact
    np.testing.assert_allclose(squad_f1(texts, references), overlap, rtol=1e-12)
    assert 0 < np.mean(exact) < np.mean(overlap) < 1
