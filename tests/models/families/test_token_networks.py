"""Encoders with a head for each token against the models that transformers itself loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    EsmTokenizer,
    RobertaTokenizer,
)

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.inferring import family_of
from merganser.config.tasks import fits
from merganser.errors import InputError
from merganser.evaluation import get_kind
from merganser.models import FindsAnswers, ScoresWords, families_with, get_family, open_network
from tests.tiny_transformers import ENCODERS, state_of, write_model

TEXTS = ["the cat sat on the mat .", "a dog", "the dog ran on a red mat"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAKERS = {"token_classifier": AutoModelForTokenClassification, "reader": AutoModelForQuestionAnswering}
OUTPUTS = {"token_classifier": 3, "reader": 2}

families = pytest.mark.parametrize("family", MAKERS)


def loaded(family: str, folder: Path, precision: Any = "float32") -> Any:
    get_family(family).check(folder, open_checkpoint(folder))
    network = open_network(family, folder, outputs=OUTPUTS[family], precision=precision)
    network.load(state_of(folder).items())
    return network


def scores(found: Any) -> Tensor:
    """Return what transformers says of each token."""
    return found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], dim=2)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", ENCODERS)
@families
def test_each_token_is_scored_as_transformers_scores_it_alone(
    family: str, kind: str, precision: str, tmp_path: Path
) -> None:
    write_model(tmp_path, kind, OUTPUTS[family], DTYPES[precision], make=MAKERS[family].from_config)
    network = loaded(family, tmp_path, precision)
    model = MAKERS[family].from_pretrained(tmp_path, dtype=DTYPES[precision]).eval()
    tokenizer, inputs = AutoTokenizer.from_pretrained(tmp_path), network.encode(TEXTS, 20)
    found = network.logits(inputs)
    near = {"atol": 1e-5, "rtol": 0.0} if precision == "float32" else {"atol": 0.1, "rtol": 0.05}
    for text, row, shown in zip(TEXTS, found, inputs["attention_mask"].bool(), strict=True):
        with torch.inference_mode():
            expected = scores(model(**tokenizer(text, return_tensors="pt")))[0]
        torch.testing.assert_close(row[shown], expected, **near)
        assert not row[~shown].any()
    assert found[0].std(dim=0).min() > 1e-3  # each token has its own


@families
def test_features_are_the_mean_of_what_the_head_sees(family: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, "bert", OUTPUTS[family], make=MAKERS[family].from_config)
    network = loaded(family, tmp_path)
    inputs = network.encode(TEXTS, 20)
    shown = inputs["attention_mask"][..., None]
    with torch.inference_mode():
        states = model.bert(**inputs).last_hidden_state
    expected = (states * shown).sum(dim=1) / shown.sum(dim=1)
    torch.testing.assert_close(network.features(inputs), expected, rtol=0, atol=1e-5)
    moved = network.forward(
        {"bert.embeddings.LayerNorm.bias": torch.ones(len(expected[0]), requires_grad=True)}, inputs
    )
    assert moved.requires_grad
    assert all(not name.startswith(("classifier", "qa_outputs")) for name in network.linear_maps())


@families
def test_a_trunk_is_a_base_and_the_tasks_models_say_the_family(family: str, tmp_path: Path) -> None:
    folders = {"sequence": AutoModelForSequenceClassification, **MAKERS}
    for name, make in folders.items():
        write_model(tmp_path / name, "bert", 2, make=make.from_config)
    AutoModel.from_pretrained(tmp_path / family).save_pretrained(tmp_path / "trunk")
    AutoTokenizer.from_pretrained(tmp_path / family).save_pretrained(tmp_path / "trunk")
    get_family(family).check(tmp_path / "trunk", open_checkpoint(tmp_path / "trunk"))
    assert family_of(tmp_path / "trunk", [tmp_path / family]) == family
    assert family_of(tmp_path / "trunk", [tmp_path / "sequence"]) == "encoder"
    assert family_of(tmp_path / "trunk") == "encoder"
    assert family_of(tmp_path / family, [tmp_path / "not here"]) == "encoder"
    (tmp_path / "adapter").mkdir()
    task = {"token_classifier": "TOKEN_CLS", "reader": "QUESTION_ANS"}[family]
    (tmp_path / "adapter/adapter_config.json").write_text(f'{{"task_type": "{task}"}}')
    assert family_of(tmp_path / "trunk", [tmp_path / "adapter"]) == family


def test_each_kind_of_text_has_its_family() -> None:
    assert families_with(ScoresWords) == ["token_classifier"]
    assert families_with(FindsAnswers) == ["reader"]
    for family, kind in (("token_classifier", "token_classification"), ("reader", "question_answering")):
        kinds = ("token_classification", "question_answering", "text_classification", "regression", "text_generation")
        assert [each for each in kinds if fits(get_kind(each), family)] == [kind]


def test_the_first_word_is_tokenised_as_the_others(tmp_path: Path) -> None:
    write_model(tmp_path, "roberta", 3, make=AutoModelForTokenClassification.from_config)
    words = ByteLevelBPETokenizer()
    words.train_from_iterator(TEXTS, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    words.save_model(str(tmp_path))
    own = RobertaTokenizer(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    own.save_pretrained(tmp_path)
    network: Any = open_network("token_classifier", tmp_path, outputs=3)
    texts = [text.split() for text in TEXTS]
    inputs, places = network.encode_words(texts, 20)
    spaced = AutoTokenizer.from_pretrained(tmp_path, add_prefix_space=True)
    expected = spaced(texts, is_split_into_words=True, padding=True, return_tensors="pt")
    assert torch.equal(inputs["input_ids"], expected.input_ids)
    assert places[1].tolist() == [expected.word_ids(1).index(0), expected.word_ids(1).index(1), *[-1] * 5]


@families
def test_a_tokenizer_that_does_not_know_places_is_refused(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, "bert", 2, make=MAKERS[family].from_config)
    (tmp_path / "vocab.txt").write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", "A", "C", "<mask>"]))
    (tmp_path / "tokenizer.json").unlink()
    EsmTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"EsmTokenizer does not say where its tokens stand in a text; save one"):
        open_network(family, tmp_path, outputs=2)


@pytest.mark.parametrize("change", [lambda state: state.popitem(), lambda state: state.update(odd=torch.ones(2))])
@families
def test_a_missing_or_a_strange_parameter_is_refused(
    family: str, change: Callable[[dict[str, Tensor]], object], tmp_path: Path
) -> None:
    write_model(tmp_path, "bert", OUTPUTS[family], make=MAKERS[family].from_config)
    state = state_of(tmp_path)
    change(state)
    network = open_network(family, tmp_path, outputs=OUTPUTS[family])
    with pytest.raises(InputError, match=r"is missing in the checkpoint|is not in the architecture"):
        network.load(state.items())
