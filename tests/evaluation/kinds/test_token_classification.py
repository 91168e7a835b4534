"""Classes of words against what transformers itself says of them text by text, and the data that is refused."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from transformers import AutoModelForTokenClassification, AutoTokenizer

from merganser.errors import InputError
from merganser.evaluation.kinds.token_classification import entities
from merganser.evaluation.scoring import score_of
from tests.evaluation.kinds.texts import check, run, sentences
from tests.tiny_transformers import write_model

KIND, FAMILY = "token_classification", "token_classifier"
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of an encoder with a head of five outputs."""
    folder = tmp_path_factory.mktemp("encoder")
    write_model(folder, "deberta-v3", len(TAGS), make=AutoModelForTokenClassification.from_config)
    return folder


def data_set(labels: Any = None, tokens: Any = None, names: Any = TAGS, kind: Any = None) -> DatasetDict:
    """Make the split `test` of drawn texts, whose words have labels in turn."""
    words = tokens or [text.split() for text in sentences(20)]
    labels = labels or [[(place + row) % len(TAGS) for place in range(len(text))] for row, text in enumerate(words)]
    features = Features({"tokens": List(Value("string")), "label": List(kind or ClassLabel(names=names))})
    return DatasetDict(test=Dataset.from_dict({"tokens": words, "label": labels}, features=features))


def answers(model: Path, texts: Sequence[Sequence[str]], **options: Any) -> list[list[int]]:
    """Have transformers say the class of each word by its first token; text by text, -1 for a word that was cut."""
    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForTokenClassification.from_pretrained(model)
    found = []
    for text in texts:
        inputs = tokenizer(list(text), is_split_into_words=True, return_tensors="pt", **options)
        with torch.inference_mode():
            classes = network(**inputs).logits[0].argmax(dim=1).tolist()
        words = inputs.word_ids(0)
        found.append([classes[words.index(word)] if word in words else -1 for word in range(len(text))])
    return found


def conlleval(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Read entities by the rules of the CoNLL script, which asks of each pair of neighbours what ends and what begins.

    Erik Tjong Kim Sang's conlleval.pl, functions endOfChunk and startOfChunk.
    """
    found, first = set(), 0
    pairs = [tag.split("-", 1) if "-" in tag else (tag, "") for tag in ["O", *tags, "O"]]
    for place, ((before, old), (mark, new)) in enumerate(pairwise(pairs)):
        ends = (before, mark) in {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
        ends |= before in "BI" and mark == "S"
        ends |= before in "ES" or (before != "O" and old != new)
        begins = mark in "BS" or (before in "OES" and mark in "IE") or (mark != "O" and old != new)
        if ends and before != "O":
            found.add((old, first, place))
        if begins:
            first = place
    return found


def test_entities_are_those_of_the_conll_script() -> None:
    generator = np.random.default_rng(0)
    tags = ["O", *(f"{mark}-{name}" for mark in "BIES" for name in ("PER", "LOC"))]
    drawn = [generator.choice(tags, generator.integers(1, 9)).tolist() for _ in range(2000)]
    assert [entities(each) for each in drawn] == [conlleval(each) for each in drawn]
    swapped = [[tag.replace("E-", "L-").replace("S-", "U-") for tag in each] for each in drawn]  # as spaCy calls them
    assert [entities(each) for each in swapped] == [conlleval(each) for each in drawn]


def test_entities_and_words_are_counted_as_transformers_finds_them(model: Path, tmp_path: Path) -> None:
    data = data_set()
    texts, labels = data["test"]["tokens"], data["test"]["label"]
    found = answers(model, texts)
    assert len({each for row in found for each in row}) > 2
    results = run(data, tmp_path / "data", model, KIND, family=FAMILY)
    counts = []
    for row, given in zip(found, labels, strict=True):
        ours, theirs = conlleval([TAGS[n] for n in row]), conlleval([TAGS[n] for n in given])
        counts.append([len(ours & theirs), len(ours), len(theirs)])
    assert np.array_equal(np.asarray(results.prediction), counts)
    correct, said, there = np.sum(counts, axis=0)
    score = score_of("entity_f1", results)
    assert correct > 0
    assert score["value"] == 2 * correct / (said + there)
    assert score["stderr"]
    assert score["count"] == len(texts)
    results = run(data, tmp_path / "data", model, KIND, "word_accuracy", family=FAMILY)
    right = [
        answer == label
        for row, given in zip(found, labels, strict=True)
        for answer, label in zip(row, given, strict=True)
    ]
    assert score_of("word_accuracy", results)["value"] == np.mean(right)


def test_words_beyond_the_last_token_are_wrong_and_outside_all_entities(model: Path, tmp_path: Path) -> None:
    data = data_set()
    found = answers(model, data["test"]["tokens"], truncation=True, max_length=4)
    assert any(-1 in row for row in found)
    results = run(data, tmp_path / "data", model, KIND, "word_accuracy", family=FAMILY, max_length=4)
    labels = data["test"]["label"]
    right = [
        answer == label
        for row, given in zip(found, labels, strict=True)
        for answer, label in zip(row, given, strict=True)
    ]
    assert score_of("word_accuracy", results)["value"] == np.mean(right)
    results = run(data, tmp_path / "data", model, KIND, family=FAMILY, max_length=4)
    said = sum(len(conlleval([TAGS[n] if n >= 0 else "O" for n in row])) for row in found)
    assert np.asarray(results.prediction)[:, 1].sum() == said


def test_labels_may_be_words_that_are_listed(model: Path, tmp_path: Path) -> None:
    numbered = data_set()
    words = [[TAGS[n] for n in row] for row in numbered["test"]["label"]]
    named = data_set(words, kind=Value("string"))
    for metric in ("entity_f1", "word_accuracy"):
        ours = run(named, tmp_path / "named", model, KIND, metric, family=FAMILY, labels=TAGS)
        theirs = run(numbered, tmp_path / "numbered", model, KIND, metric, family=FAMILY)
        assert np.array_equal(np.asarray(ours.prediction), np.asarray(theirs.prediction))
        assert np.array_equal(np.asarray(ours.label), np.asarray(theirs.label))  # the same examples


@pytest.mark.parametrize(
    ("data", "own", "message"),
    [
        (data_set().rename_column("tokens", "words"), {}, r"has no column 'tokens'; it has .*data\.columns"),
        (data_set().rename_column("label", "ner_tags"), {}, r"has no column 'label'; it has .*data\.columns"),
        (data_set(kind=Value("int64")), {}, "the labels have no names; cast them to ClassLabel, or name them"),
        (
            data_set(kind=Value("string"), labels=[["O"]], tokens=[["a"]]),
            {},
            r"the labels are words; data\.labels lists",
        ),
        (data_set(), {"labels": TAGS}, r"the labels are int64, not words; leave data\.labels out"),
        (data_set(), {"classes": TAGS[:3]}, r"has 5 classes, data\.classes names 3"),
        (data_set(), {"classes": [*TAGS[:3], "I-LOC", "B-LOC"]}, r"the label 3 is 'B-LOC', and data\.classes names it"),
        (
            data_set(names=["noun", *TAGS[1:]]),
            {},
            "entity_f1 reads tags such as O, B-PER and I-PER, and 'noun' is none",
        ),
    ],
)
def test_data_that_is_not_of_the_kind_is_refused(data: Any, own: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(data, KIND, **own)


@pytest.mark.parametrize("nested", [[["a"]], [{"word": "a"}]])
def test_words_that_are_lists_or_structs_are_refused(nested: Any) -> None:
    with pytest.raises(InputError, match=r"the column 'tokens' holds lists of .*, not of words"):
        check(DatasetDict(test=Dataset.from_dict({"tokens": [nested], "label": [[0]]})), KIND, classes=TAGS)


def test_columns_that_are_no_lists_and_splits_with_other_classes_are_refused() -> None:
    plain = DatasetDict(test=Dataset.from_dict({"tokens": ["a b"], "label": [0]}))
    with pytest.raises(InputError, match="the column 'tokens' is no list, one value a word"):
        check(plain, KIND, classes=TAGS)
    with pytest.raises(InputError, match="the splits number classes differently"):
        check(DatasetDict(test=data_set()["test"], train=data_set(names=TAGS[::-1])["test"]), KIND)


@pytest.mark.parametrize(
    ("labels", "tokens", "message"),
    [
        ([[0, 1]], [["a", "b", "c"]], "example 0 has 3 words and 2 labels; leave it out"),
        ([[0], []], [["a"], []], "example 1 has nothing in the column 'tokens'; leave it out"),
    ],
)
def test_examples_that_do_not_fit_are_named(
    model: Path, tmp_path: Path, labels: Any, tokens: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(data_set(labels, tokens), tmp_path / "data", model, KIND, family=FAMILY)
