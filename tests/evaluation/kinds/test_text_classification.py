"""Classes of texts against what transformers itself says of them one by one, and the data that is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Array2D, Dataset, DatasetDict, List, Value
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from merganser.errors import InputError
from merganser.evaluation.evaluator import check_head, open_evaluator
from merganser.evaluation.scoring import score_of
from merganser.evaluation.texts import encode_texts, logits_of
from merganser.models import open_network
from tests.evaluation.kinds.texts import COUNT, check, classes, data_set, prepared_in, run, sentences
from tests.tiny_transformers import state_of, write_model

KIND = "text_classification"
NAMES = ["no", "maybe", "yes"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of an encoder with a head of three outputs."""
    folder = tmp_path_factory.mktemp("encoder")
    network = write_model(folder, "roberta", 3)
    with torch.no_grad():  # a bias that lets every class be the likeliest one of some texts
        network.classifier.out_proj.bias -= torch.tensor(logits_one_by_one(folder, [(t,) for t in sentences()]).mean(0))
    network.save_pretrained(folder)
    return folder


def logits_one_by_one(model: Path, texts: Sequence[Any], **options: Any) -> np.ndarray:
    """Run transformers on each text alone: nothing is padded."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model)
    with torch.inference_mode():
        rows = [network(**tokenizer(*text, return_tensors="pt", **options)).logits[0].numpy() for text in texts]
    return np.stack(rows)


@pytest.mark.parametrize("pairs", [False, True])
def test_each_text_or_pair_gets_the_class_that_transformers_gives_it_alone(
    model: Path, tmp_path: Path, pairs: bool
) -> None:
    results = run(data_set(*classes(COUNT, NAMES), pairs=pairs), tmp_path / "data", model, KIND)
    texts = zip(sentences(), sentences(seed=1), strict=True) if pairs else [(text,) for text in sentences()]
    expected = logits_one_by_one(model, list(texts)).argmax(1)
    labels = np.arange(COUNT) % 3
    assert len(set(expected)) > 1
    assert results.prediction is not None
    assert results.label is not None
    assert results.score is not None
    assert results.prediction.tolist() == expected.tolist()
    assert results.label.tolist() == labels.tolist()
    assert results.score.tolist() == (expected == labels).tolist()
    assert score_of("accuracy", results)["value"] == (expected == labels).mean()


def test_longer_texts_are_cut(model: Path, tmp_path: Path) -> None:
    results = run(data_set(*classes(COUNT, NAMES)), tmp_path / "data", model, KIND, max_length=4)
    texts = [(text,) for text in sentences()]
    expected = logits_one_by_one(model, texts, truncation=True, max_length=4).argmax(1)
    assert results.prediction is not None
    assert results.prediction.tolist() == expected.tolist()
    assert expected.tolist() != logits_one_by_one(model, texts).argmax(1).tolist()


def test_masked_outputs_are_no_classes(model: Path, tmp_path: Path) -> None:
    data = data_set(*classes(COUNT, ["no", "yes"]))
    results = run(data, tmp_path / "data", model, KIND, "f1", masked=[1])
    expected = logits_one_by_one(model, [(text,) for text in sentences()])[:, [0, 2]].argmax(1)
    assert results.prediction is not None
    assert results.prediction.tolist() == expected.tolist()
    assert results.score is None
    score = score_of("f1", results)
    labels = np.arange(COUNT) % 2
    assert score["value"] == pytest.approx(2 * (expected & labels).sum() / (expected.sum() + labels.sum()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_set(*classes(4, NAMES), text=None, sentence=["a"] * 4), "has no column 'text'; it has .*data.columns"),
        (data_set(*classes(4, NAMES), text=[1, 2, 3, 4]), "the column 'text' holds int64, not texts"),
        (data_set(*classes(4, NAMES), pair=[1, 2, 3, 4]), "the column 'pair' holds int64, not texts"),
        (data_set(Value("int64"), [0, 1, 2, 0]), "the label column has no class names"),
        (data_set(Value("float64"), [0.5, 1.0]), "the label column has no class names"),
    ],
)
def test_data_that_is_not_of_the_kind_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"hub/task: split test.*{message}"):
        check(data, KIND)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"has the label 2, data\.classes names 2"):
        check(data_set(Value("int64"), [0, 1, 2, 0]), KIND, classes=["no", "yes"])
    with pytest.raises(InputError, match=r"3 classes, data\.classes names 2"):
        check(data_set(*classes(4, NAMES)), KIND, classes=["no", "yes"])


@pytest.mark.parametrize(
    ("data", "own", "message"),
    [
        (data_set(*classes(4, NAMES)), {"classes": ["yes", "maybe", "no"]}, "the label 0 is 'no', and data.classes"),
        (data_set(Value("string"), ["a", "b"]), {"labels": ["a", "b"], "classes": ["b", "a"]}, "the label 0 is 'a'"),
        (data_set(Value("float64"), [0.0, 1.0]), {"classes": ["a", "b"]}, "the labels are float64, not whole numbers"),
        (data_set(Array2D((1, 1), "uint8"), [[[0]]]), {"classes": ["a", "b"]}, "the labels are Array2D"),
        (data_set(List(Value("int64")), [[0, 1]]), {"classes": ["a", "b"]}, "the labels are List.*not whole numbers"),
    ],
)
def test_declared_names_are_those_of_the_labels(data: Any, own: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(data, KIND, **own)


def test_batches_hold_texts_of_about_one_length_and_scores_stand_in_the_order_of_the_texts(
    model: Path, tmp_path: Path
) -> None:
    texts, shapes = sentences(), list[torch.Size]()
    network: Any = open_network("encoder", model, outputs=3)
    network.load(state_of(model).items())
    encoded = encode_texts(network, texts, 32)
    network.module.register_forward_pre_hook(
        lambda module, args, inputs: shapes.append(inputs["input_ids"].shape), with_kwargs=True
    )
    logits = logits_of(network, prepared_in(tmp_path / "prepared", [encoded]), 5)
    torch.testing.assert_close(logits, torch.tensor(logits_one_by_one(model, [(text,) for text in texts])))
    lengths = sorted(encoded["attention_mask"].sum(dim=1).tolist(), reverse=True)
    assert shapes == [(len(lengths[start : start + 5]), lengths[start]) for start in range(0, COUNT, 5)]


def test_labels_may_be_renamed() -> None:
    check(data_set(*classes(4, NAMES)), KIND, classes=["never", "maybe", "always"])
    check(data_set(*classes(4, ["A", "a"])), KIND, classes=["A", "a"])
    check(data_set(*classes(4, ["0", "1", "2"])), KIND, classes=["1", "2", "3"])  # stars, by their numbers before


def test_a_split_may_have_no_labels_at_all() -> None:
    given = {"text": ["a", "b"]}
    splits = {
        "test": Dataset.from_dict(given | {"label": [0, 1]}),
        "hidden": Dataset.from_dict(given | {"label": [None] * 2}),
    }
    check(DatasetDict(splits), KIND, classes=["no", "yes"], unlabelled="drop")


def test_splits_that_number_the_classes_differently_are_refused() -> None:
    train, test = (data_set(*classes(4, names))["test"] for names in (NAMES, NAMES[::-1]))
    with pytest.raises(InputError, match="the classes are yes, maybe, no in the split test, and no, maybe, yes in tr"):
        check(DatasetDict(train=train, test=test), KIND)


def test_a_metric_of_two_classes_is_refused_for_three() -> None:
    data = data_set(*classes(4, NAMES))
    check(data, KIND, "matthews")
    with pytest.raises(InputError, match=r"data\.metric: f1 needs 2 classes; split test of hub/task has 3 classes"):
        check(data, KIND, "f1")


@pytest.mark.parametrize("unlabelled", [-1, None])
def test_an_unlabelled_example_is_refused(model: Path, tmp_path: Path, unlabelled: int | None) -> None:
    label, labels = classes(4, NAMES)
    what = "no label" if unlabelled is None else "the label -1; the classes are 0 to 2"
    with pytest.raises(InputError, match=f"data: split test: example 3 has {what}; .* leaves out"):
        run(data_set(label, [*labels[:3], unlabelled]), tmp_path / "data", model, KIND)


@pytest.mark.parametrize("unlabelled", [-1, None])
def test_unlabelled_examples_are_dropped_where_the_entry_says_so(
    model: Path, tmp_path: Path, unlabelled: int | None
) -> None:
    label, labels = classes(COUNT, NAMES)
    some = [unlabelled if number in (0, 3, COUNT - 1) else each for number, each in enumerate(labels)]
    whole = run(data_set(label, labels), tmp_path / "data", model, KIND)
    kept = [number for number, each in enumerate(some) if each != unlabelled]
    found = run(data_set(label, some), tmp_path / "some", model, KIND, unlabelled="drop")
    assert whole.prediction is not None
    assert found.prediction is not None
    assert found.label is not None
    assert found.prediction.tolist() == whole.prediction[kept].tolist()
    assert found.label.tolist() == [labels[number] for number in kept]


def test_labels_of_numbers_may_be_missing_only_where_the_entry_says_so() -> None:
    data = data_set(Value("int64"), [0, -1, None, 1])
    check(data, KIND, classes=["no", "yes"], unlabelled="drop")
    with pytest.raises(InputError, match=r"has the label -1, data\.classes names 2"):
        check(data, KIND, classes=["no", "yes"])


def test_a_split_without_any_label_is_refused(model: Path, tmp_path: Path) -> None:
    label, labels = classes(4, NAMES)
    with pytest.raises(InputError, match=r"evaluation\.split: no example of test has a label; name another split"):
        run(data_set(label, [-1] * len(labels)), tmp_path / "data", model, KIND, unlabelled="drop")


def test_labels_may_be_words_in_an_order_that_the_entry_gives(model: Path, tmp_path: Path) -> None:
    label, labels = classes(COUNT, NAMES)
    words = ["neutral", "entails", "contradicts"]
    numbered = run(data_set(label, labels), tmp_path / "data", model, KIND)
    spelt = data_set(Value("string"), [words[number] for number in labels])
    found = run(spelt, tmp_path / "spelt", model, KIND, labels=words)
    assert numbered.label is not None
    assert found.label is not None
    assert found.label.tolist() == numbered.label.tolist()
    assert check(spelt, KIND, labels=words).classes(tmp_path / "spelt") == words
    assert check(spelt, KIND, labels=words, classes=NAMES).classes(tmp_path / "spelt") == NAMES


@pytest.mark.parametrize(
    ("data", "own", "message"),
    [
        (data_set(Value("string"), ["a", "b"]), {}, "holds words; data.labels lists them"),
        (
            data_set(Value("string"), ["a", "c"]),
            {"labels": ["a", "b"]},
            "has the label 'c', which data.labels does not",
        ),
        (
            data_set(Value("int64"), [0, 1]),
            {"labels": ["a", "b"]},
            "labels are int64, not words; leave data.labels out",
        ),
    ],
)
def test_words_that_do_not_fit_the_labels_are_refused(data: Any, own: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"hub/task: split test.*{message}"):
        check(data, KIND, **own)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"labels": ["a", "a"]}, "'a' is listed twice"),
        ({"labels": ["a", "b"], "classes": ["a", "b", "c"]}, "labels has 2 words, classes 3 names"),
    ],
)
def test_words_that_do_not_fit_the_classes_are_refused(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_evaluator(KIND, own, None)


def test_an_example_without_a_text_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="example 2 has nothing in the column 'text'"):
        run(data_set(*classes(4, NAMES), text=["a", "b", None, "c"]), tmp_path / "data", model, KIND)


def test_a_head_is_taken_by_its_names_or_by_their_number() -> None:
    check_head(["not_entailment", "Entailment"], ["not entailment", "entailment"], (), "tasks.rte")
    check_head(["LABEL_0", "LABEL_1"], ["no", "yes"], (), "tasks.rte")
    check_head(["no", "maybe", "yes"], ["no", "yes"], [1], "tasks.rte")


@pytest.mark.parametrize(
    ("head", "masked", "message"),
    [
        (["entailment", "not_entailment"], (), "in another order: entailment, not_entailment; the data has.*reorder"),
        (["positive", "negative"], (), "other classes: positive, negative; .*give data.classes the head's"),
        (["a", "b", "c"], (), r"has 3 outputs, the data 2 classes \(not_entailment, entailment\); set data.masked"),
        (["LABEL_0", "LABEL_1"], [1], "has 2 outputs without 1 masked, the data 2 classes"),
    ],
)
def test_a_head_of_other_classes_is_refused(head: list[str], masked: Sequence[int], message: str) -> None:
    with pytest.raises(InputError, match=f"tasks.rte: the head has.*{message}|tasks.rte: the head {message}"):
        check_head(head, ["not_entailment", "entailment"], masked, "tasks.rte")
