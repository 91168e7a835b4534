"""Text generation with tiny models against a plain loop over transformers' own `generate`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Array2D, ClassLabel, Dataset, Features, List, Value
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.examples import Results, compare_texts
from merganser.evaluation.kinds import text_generation as kind
from merganser.evaluation.kinds.text_generation import Settings
from merganser.evaluation.scoring import score_of
from merganser.models import open_network
from tests.evaluation.kinds.texts import prepared_in
from tests.tiny_transformers import FAMILIES, tokenizer, write_model

SENTENCES = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat", "yes", "a dark image of the cat"]
PROMPT = "the {sentence} yes no"
KINDS = ("t5", "llama, untied")
ANSWERS = {"answers": ["yes", "no"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in KINDS}
    for name, folder in made.items():
        write_model(folder, name)
    return made


def evaluated(folder: Path, name: str, rows: Dataset, metric: str, **settings: Any) -> Results:
    network = open_network(FAMILIES[name], folder)
    checkpoint = open_checkpoint(folder)
    evaluator = open_evaluator("text_generation", {"prompt": PROMPT} | settings, metric)
    evaluator.check_data({"test": rows}, folder)
    classes = kind.classes(rows.features, evaluator.settings)
    assert evaluator.outputs(classes) is None
    prepared = prepared_in(folder / "prepared", kind.prepare(rows, evaluator.settings, network), classes)
    network.load((parameter, checkpoint.read(parameter)) for parameter in checkpoint.names)
    return evaluator.results(network, prepared, batch_size=2)


def written(folder: Path, name: str, count: int) -> list[str]:
    """Answer each prompt by transformers, one by one."""
    make = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    model, words, texts = make.from_pretrained(folder), tokenizer(ends=name == "t5"), []
    for sentence in SENTENCES:
        tokens = words(PROMPT.format(sentence=sentence), return_tensors="pt").input_ids
        found = model.generate(tokens, max_new_tokens=count, do_sample=False)[0]
        texts.append(words.decode(found if name == "t5" else found[tokens.shape[1] :], skip_special_tokens=True))
    return texts


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_is_right_where_it_is_the_given_text_but_for_spaces(folders: dict[str, Path], name: str) -> None:
    texts = written(folders[name], name, 4)
    answers = [f" {text}\n" if i % 2 else f"{text}x" for i, text in enumerate(texts)]
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": answers})
    found = evaluated(folders[name], name, rows, "exact_match", max_new_tokens=4)
    assert found.score is not None
    assert found.score.tolist() == [0, 1, 0, 1, 0]
    assert score_of("exact_match", found)["value"] == 2 / 5


def test_texts_are_set_against_one_reference_or_several(folders: dict[str, Path]) -> None:
    texts = written(folders["t5"], "t5", 4)
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": [["no such words", text] for text in texts]})
    for metric in ("bleu", "chrf", "rouge_l", "meteor_stems"):
        found = evaluated(folders["t5"], "t5", rows, metric, max_new_tokens=4)
        expected = compare_texts(metric, [text.strip() for text in texts], rows["answer"])
        assert score_of(metric, found) == score_of(metric, expected)
    with pytest.raises(InputError, match="exact_match needs one right answer an example; that of 'no such words'"):
        evaluated(folders["t5"], "t5", rows, "exact_match")
    labelled = Dataset.from_dict({"sentence": SENTENCES, "label": [0] * 5})
    with pytest.raises(InputError, match="bleu needs the column answer"):
        evaluated(folders["t5"], "t5", labelled, "bleu", answers=["yes", "no"])


def test_rouge_is_refused_of_answers_without_a_word_that_it_counts(folders: dict[str, Path]) -> None:
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": ["a cat", "un été", "猫", "no", "dog"]})
    with pytest.raises(InputError, match="rouge_l counts words of ASCII letters and digits, and '猫' has none: choose"):
        evaluated(folders["t5"], "t5", rows, "rouge_l")
    assert len(evaluated(folders["t5"], "t5", rows, "chrf")) == 5


@pytest.mark.parametrize("name", KINDS)
def test_of_several_prompts_an_example_has_the_mean(folders: dict[str, Path], name: str) -> None:
    prompts = [PROMPT, "no {sentence} mat ."]
    labels = [0, 1, 2, 0, 1]
    rows, answers = Dataset.from_dict({"sentence": SENTENCES, "label": labels}), ["yes", "no", "red cat"]
    settings = {"answers": answers, "scoring": "rank"}
    each = [evaluated(folders[name], name, rows, "accuracy", **settings, prompt=prompt) for prompt in prompts]
    both = evaluated(folders[name], name, rows, "accuracy", **settings, prompt=prompts)
    assert both.score is not None
    scores = np.array([one.score for one in each])
    assert scores[0].tolist() != scores[1].tolist()
    assert both.score.tolist() == scores.mean(0).tolist()
    assert both.prediction is None
    assert both.label is not None
    assert both.label.tolist() == labels
    with pytest.raises(InputError, match="matthews is no mean over examples, which several prompts need"):
        evaluated(folders[name], name, rows, "matthews", **settings, prompt=prompts)


def test_labels_stand_for_answers_and_others_are_none_of_them(folders: dict[str, Path]) -> None:
    texts = written(folders["t5"], "t5", 4)
    answers = [texts[1], "no such answer"]
    rows = Dataset.from_dict({"sentence": SENTENCES, "label": [0, 0, 1, 1, 0]})
    found = evaluated(folders["t5"], "t5", rows, "accuracy", answers=answers, max_new_tokens=4)
    assert found.prediction is not None
    assert found.prediction.tolist() == [0 if text == texts[1] else -1 for text in texts]
    assert score_of("matthews", evaluated(folders["t5"], "t5", rows, "matthews", answers=answers))["count"] == 5


@pytest.mark.parametrize("name", KINDS)
def test_the_likeliest_of_the_given_answers_is_chosen(folders: dict[str, Path], name: str) -> None:
    answers = ["yes", "no", "red cat"]
    rows = Dataset.from_dict({"sentence": SENTENCES, "label": [0, 1, 2, 0, 1]})
    found = evaluated(folders[name], name, rows, "accuracy", answers=answers, scoring="rank")
    network, checkpoint = open_network(FAMILIES[name], folders[name]), open_checkpoint(folders[name])
    network.load((parameter, checkpoint.read(parameter)) for parameter in checkpoint.names)
    alone = [
        int(network.rank(network.encode([PROMPT.format(sentence=one)], 50), answers).argmax())  # type: ignore[attr-defined]
        for one in SENTENCES
    ]
    assert found.prediction is not None
    assert found.prediction.tolist() == alone


def test_numbers_are_read_from_answers_and_what_is_none_counts_as_zero(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": [3.84, 0.0, 5.0, 1.25, 2.0]})
    settings = Settings(prompt=PROMPT)
    network = open_network("seq2seq", folders["t5"])
    prepared = prepared_in(tmp_path / "prepared", kind.prepare(rows, settings, network))
    texts = map(tuple, prepared.array("input_ids").tolist())
    said = dict(zip(texts, ["3.5", " 1.0 ", "yes", "nan", "4"], strict=True))
    monkeypatch.setattr(
        network, "generate", lambda batch, count: [said[tuple(row)] for row in batch["input_ids"].tolist()]
    )
    found = kind.results(network, prepared, settings, "spearman", batch_size=2)
    assert found.prediction is not None
    assert found.label is not None
    assert found.prediction.tolist() == [3.5, 1.0, 0.0, 0.0, 4.0]
    assert found.label.tolist() == [3.8, 0.0, 5.0, 1.2, 2.0]


def test_prompts_are_cut_to_the_length_that_is_given(folders: dict[str, Path]) -> None:
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": ["yes"] * 5})
    network = open_network("seq2seq", folders["t5"])
    (prepared,) = kind.prepare(rows, Settings(prompt=PROMPT, max_length=6), network)
    assert prepared["input_ids"].shape == (5, 6)
    assert prepared["answer"].dtype == torch.uint8
    assert np.array(prepared["attention_mask"]).sum() == 6 * 4 + 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "no columns"}, "must name columns of the data in braces"),
        ({"prompt": "{sentence.__class__}"}, "must name columns of the data in braces"),
        ({"prompt": "{sentence!r}"}, "and nothing else in them"),
        ({"prompt": "{sentence"}, "not a template"),
        ({"prompt": PROMPT, "scoring": "rank"}, "scoring: rank needs `answers`"),
        ({"prompt": PROMPT, "answers": ["yes"]}, "at least 2 items"),
        ({"prompt": PROMPT, "answers": ["yes", " yes"]}, "'yes' is listed twice"),
        ({"prompt": [PROMPT]}, "at least 2 items"),
        ({"prompt": [PROMPT, "no columns"]}, "must name columns of the data in braces"),
        ({"prompt": PROMPT, "max_new_tokens": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**settings)


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"text": SENTENCES, "answer": SENTENCES}, {}, "split test has no column 'sentence'"),
        ({"sentence": SENTENCES, "label": [0] * 5}, {}, "split test has no column 'answer'"),
        (
            {"sentence": SENTENCES, "label": [0, 2, 0, 0, 0]},
            {"answers": ["yes", "no"]},
            "the label 2; labels are the numbers 0 to 1 of data.answers",
        ),
    ],
)
def test_data_without_what_the_prompt_or_the_answers_need_is_refused(
    columns: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    evaluator = open_evaluator("text_generation", {"prompt": PROMPT, **settings}, None)
    with pytest.raises(InputError, match=message):
        evaluator.check_data({"test": Dataset.from_dict(columns)}, Path("data"))


def test_a_split_without_labels_may_be_there_and_is_refused_where_it_is_evaluated(folders: dict[str, Path]) -> None:
    settings = {"prompt": PROMPT, "answers": ["yes", "no"]}
    evaluator = open_evaluator("text_generation", settings, None)
    splits = {
        name: Dataset.from_dict({"sentence": SENTENCES, "label": labels})
        for name, labels in (("validation", [0, 1, 0, 1, 0]), ("test", [-1] * 5))
    }
    evaluator.check_data(splits, Path("data"))
    with pytest.raises(InputError, match="example 0 has the label -1; the classes are 0 to 1; evaluate"):
        list(kind.prepare(splits["test"], Settings(**settings), open_network("seq2seq", folders["t5"])))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("sentence", [*SENTENCES[:3], None, SENTENCES[4]]),
        ("answer", ["a", "b", "c", None, "d"]),
        ("answer", [1.0, 2.0, 3.0, float("nan"), 5.0]),
        ("answer", [["a"], ["b"], ["c"], [], ["d"]]),
        ("answer", [["a"], ["b"], ["c"], ["d", None], ["e"]]),
    ],
)
def test_an_example_without_a_question_or_an_answer_is_refused_and_not_scored_as_text(
    column: str, values: list[Any], folders: dict[str, Path]
) -> None:
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": SENTENCES, column: values})
    with pytest.raises(InputError, match=f"example 3 has nothing in the column '{column}'; leave it out"):
        list(kind.prepare(rows, Settings(prompt=PROMPT), open_network("seq2seq", folders["t5"])))


def test_what_does_not_fit_is_refused_before_the_model_runs(folders: dict[str, Path]) -> None:
    rows = Dataset.from_dict({"sentence": SENTENCES, "answer": SENTENCES})
    with pytest.raises(InputError, match=r"'the cat sat on the mat \.' in the column answer is not a number"):
        evaluated(folders["t5"], "t5", rows, "spearman")
    with pytest.raises(InputError, match="matthews needs `answers`"):
        evaluated(folders["t5"], "t5", rows, "matthews")


ONE = Value("string")


@pytest.mark.parametrize(
    ("column", "values", "feature", "metric", "settings", "message"),
    [
        ("label", [0, 1], ClassLabel(names=["no", "yes"]), "accuracy", ANSWERS, "data.answers names it 'yes'"),
        ("label", [0.0, 1.0], Value("float64"), "accuracy", ANSWERS, "the labels are float64"),
        ("label", [[0], [1]], List(Value("int64")), "accuracy", ANSWERS, "the labels are List"),
        ("label", [[[0]], [[1]]], Array2D((1, 1), "uint8"), "accuracy", ANSWERS, "the labels are Array2D"),
        ("label", [0, 1], Value("int64"), "spearman", ANSWERS, "spearman needs the column answer"),
        ("label", [0, 1], Value("int64"), "bleu", ANSWERS, "bleu needs the column answer"),
        ("answer", [0, 1], ClassLabel(names=["no", "yes"]), "exact_match", {}, "the column 'answer' holds classes"),
        ("answer", [0.25, 1.0], Value("float64"), "exact_match", {}, "holds float64, and exact_match compares texts"),
        ("answer", [["a", "b"], ["c"]], List(ONE), "exact_match", {}, "needs one right answer an example"),
        ("answer", [{"text": "a"}] * 2, {"text": ONE}, "exact_match", {}, "holds .*'text'.*; save it as texts"),
        ("answer", ["1", "one"], ONE, "spearman", {}, "'one' in the column answer is not a number"),
        ("answer", ["1", "2"], ONE, "matthews", {}, "matthews needs `answers`"),
    ],
)
def test_labels_answers_and_metrics_that_do_not_fit_are_refused_with_the_data(
    column: str, values: list[Any], feature: Any, metric: str, settings: dict[str, Any], message: str
) -> None:
    rows = Dataset.from_dict(
        {"sentence": ["a", "b"], column: values}, features=Features({"sentence": ONE, column: feature})
    )
    with pytest.raises(InputError, match=message):
        open_evaluator("text_generation", {"prompt": PROMPT} | settings, metric).check_data({"test": rows}, Path("d"))


@pytest.mark.parametrize("feature", [ClassLabel(names=["no", "yes"]), List(Value("int64"))])
def test_a_prompt_is_made_of_texts_and_numbers(feature: Any) -> None:
    features = Features({"sentence": feature, "answer": ONE})
    rows = Dataset.from_dict({"sentence": [], "answer": []}, features=features)
    with pytest.raises(InputError, match=r"the column 'sentence' holds .*; save it as texts"):
        open_evaluator("text_generation", {"prompt": PROMPT}, None).check_data({"test": rows}, Path("d"))


def test_answers_of_the_same_tokens_are_not_ranked(folders: dict[str, Path]) -> None:
    rows = Dataset.from_dict({"sentence": SENTENCES, "label": [0] * 5})
    with pytest.raises(InputError, match="'unheard' and 'unseen' are the same tokens"):
        evaluated(folders["t5"], "t5", rows, "accuracy", answers=["unheard", "unseen"], scoring="rank")


def test_answers_are_ranked_by_the_tokens_that_they_have_behind_the_prompt(tmp_path: Path) -> None:
    """Llama 2's tokenizer puts a space before every text, and an answer that begins with one would get two."""
    write_model(tmp_path, "llama, untied")
    words = ["<unk>", "▁", "▁yes", "▁no", "▁the", "▁cat", "▁a", "▁dog"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<unk>").save_pretrained(tmp_path)
    network, checkpoint = open_network("causal", tmp_path), open_checkpoint(tmp_path)
    network.load((parameter, checkpoint.read(parameter)) for parameter in checkpoint.names)
    found = network.rank(network.encode(["the cat"], 50), [" yes", " no"])  # type: ignore[attr-defined]
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        logits = model(torch.tensor([made.encode("the cat yes").ids])).logits
    torch.testing.assert_close(found[0], logits[0, 1].log_softmax(-1)[[2, 3]])
