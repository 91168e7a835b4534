"""A params.yaml for models and data that are named: what their files say stands in it, the rest is to be filled in."""

from pathlib import Path

import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from transformers import (
    AutoModelForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
)

from merganser.config.drafting import draft
from merganser.config.headers import check_sources
from merganser.config.loading import complete_file, load_params
from merganser.errors import InputError
from tests.sentence_encoders import write_encoder
from tests.tiny_transformers import tokenizer, write_model


def write_texts(folder: Path) -> None:
    """Write a data set of one sentence, whose columns have names of their own."""
    features = Features({"sentence": Value("string"), "class": ClassLabel(names=["no", "yes"]), "idx": Value("int32")})
    rows = Dataset.from_list([{"sentence": "the cat sat", "class": 0, "idx": 7}], features=features)
    DatasetDict({"test": rows}).save_to_disk(folder)


def test_what_files_say_stands_there_and_the_rest_is_a_comment_to_fill_in(tmp_path: Path) -> None:
    write_model(tmp_path / "mine", "bert")
    write_texts(tmp_path / "data")
    mine, data = str(tmp_path / "mine"), str(tmp_path / "data")
    (root := tmp_path / "draft").mkdir()
    found = draft({"base": mine, "one": mine, "two": mine}, {"one": data}, root)
    said = {"text": "sentence", "label": "class"}
    assert yaml.safe_load(found.text) == {
        "base": {"source": mine, "family": "encoder", "heads": ["classifier.*"]},
        "tasks": {
            "one": {"source": mine, "kind": "text_classification", "data": {"source": data, "columns": said}},
            "two": {"source": mine},
        },
        "methods": dict.fromkeys(["base", "individual", "average", "task_arithmetic", "ties", "tsv_m"]),
    }
    assert found.read[:2] == ("base.family: encoder", "base.heads: [classifier.*]")
    comments = [line.strip() for line in found.text.splitlines() if "# fill in" in line]
    assert comments == [
        "# fill in kind: regression or text_classification: docs/kinds.md",
        "# fill in data: {source: datasets/two}: a folder that DatasetDict.save_to_disk wrote, or a pointer file: "
        "docs/params.md",
    ]


def test_of_a_model_that_compares_pictures_with_texts_there_is_no_kind_to_fill_in(tmp_path: Path) -> None:
    write_model(tmp_path / "mine", "clip")
    write_texts(tmp_path / "data")
    mine = str(tmp_path / "mine")
    assert "fill in" not in draft({"base": mine, "one": mine}, {"one": str(tmp_path / "data")}, tmp_path).text


def test_a_comment_says_what_data_lacks_for_a_kind_to_follow(tmp_path: Path) -> None:
    write_model(tmp_path / "mine", "bert")
    rows = Dataset.from_list([{"sentence": "the cat sat", "sentiment": "good"}])
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "data")
    found = draft({"base": (mine := str(tmp_path / "mine")), "one": mine}, {"one": str(tmp_path / "data")}, tmp_path)
    comment = "# the column 'sentiment' of the data holds words; list them under data.labels, in the order"
    assert any(line.strip().startswith(comment) for line in found.text.splitlines())


@pytest.mark.parametrize(("kind", "part"), [("deberta-v3", "*pooler.*"), ("DistilBert", "pre_classifier.*")])
def test_a_part_of_the_head_that_the_base_lacks_is_a_head_too(kind: str, part: str, tmp_path: Path) -> None:
    """The masked language model that everybody fine-tunes has no pooler, or no layer before the classifier."""
    if kind == "DistilBert":
        config = DistilBertConfig(
            vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32
        )
        classifier, base = DistilBertForSequenceClassification(config), DistilBertForMaskedLM(config)
        tokenizer().save_pretrained(tmp_path / "one")
    else:
        classifier = write_model(tmp_path / "one", kind)
        base = AutoModelForMaskedLM.from_config(classifier.config)
    classifier.save_pretrained(tmp_path / "one")
    base.save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    write_texts(tmp_path / "data")
    models = {name: str(tmp_path / name) for name in ("base", "one")}
    found = draft(models, {"one": str(tmp_path / "data")}, tmp_path)
    heads = yaml.safe_load(found.text)["base"]["heads"]
    assert heads == ["classifier.*", part]
    (tmp_path / "params.yaml").write_text(found.text)
    assert complete_file(tmp_path / "params.yaml")
    params = load_params(tmp_path / "params.yaml")
    check_sources(params, tmp_path, lambda source: False)
    for fewer, said in ((heads[:1], "none of"), ([], "no pattern")):
        less = params.model_copy(update={"base": params.base.model_copy(update={"heads": fewer})})
        said = rf"base\.heads: the base lacks .*, which each task's network needs, and {said}"
        with pytest.raises(InputError, match=said):
            check_sources(less, tmp_path, lambda source: False)


def test_what_is_on_a_hub_gets_a_file_that_names_it(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    found = draft({"one": "org/model@main", "two": f"org/other@{commit}"}, {"one": "org/data"}, tmp_path)
    assert "# fill in family: one of audio, causal, clip, encoder" in found.text
    assert yaml.safe_load(found.text)["base"] == {"source": "data/checkpoints"}
    assert {path.name: path.read_text() for path in (tmp_path / "sources").iterdir()} == {
        "one.yaml": "hub: org/model\nfollow: main\n",
        "two.yaml": f"hub: org/other\nrevision: {commit}\n",
        "one-data.yaml": "hub: org/data\nfollow: main\n",
    }
    again = draft({"one": str(tmp_path / "sources/one.yaml")}, {}, tmp_path)
    assert yaml.safe_load(again.text)["tasks"]["one"]["source"] == "sources/one.yaml"


def test_a_name_or_a_source_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    base = str(tmp_path / "base")
    for models, data, words in (
        ({"one": str(tmp_path / "bse")}, {}, '--models: no such file or folder: .*; did you mean "base"'),
        ({"a b": base}, {}, "'a b' is no name"),
        ({"base": base}, {}, "there is no task's model"),
        ({"base": base, "digits": base}, {"digit": base}, "no task is called 'digit'; did you mean \"digits\""),
    ):
        with pytest.raises(InputError, match=words):
            draft(models, data, tmp_path)


def test_pairs_of_a_sentence_encoder_are_similar_by_a_number_and_retrieved_without_one(tmp_path: Path) -> None:
    write_encoder(tmp_path / "mine")
    mine, row = str(tmp_path / "mine"), {"sentence1": "the cat", "sentence2": "a dog"}
    for name, columns in (("alike", {**row, "score": 0.5}), ("found", row)):
        DatasetDict({"test": Dataset.from_list([columns])}).save_to_disk(tmp_path / name)
    (root := tmp_path / "draft").mkdir()
    data = {name: str(tmp_path / name) for name in ("alike", "found")}
    drafted = yaml.safe_load(draft({"base": mine, "alike": mine, "found": mine}, data, root).text)
    said = {"text": "sentence1", "pair": "sentence2"}
    assert drafted["base"] == {"source": mine, "family": "sentence_encoder"}
    assert drafted["tasks"] == {
        "alike": {
            "source": mine,
            "kind": "sentence_similarity",
            "data": {"source": data["alike"], "columns": {"label": "score", **said}},
        },
        "found": {"source": mine, "kind": "retrieval", "data": {"source": data["found"], "columns": said}},
    }
