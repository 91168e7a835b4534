from pathlib import Path

import pytest
import torch

from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.statistics.sampling import Sample, draw, draw_label
from tests.statistics.samples import clip_sample, prepared_in, text_sample


@pytest.fixture
def numbered(tmp_path: Path) -> Prepared:
    return prepared_in(tmp_path / "data", "regression", {"number": torch.arange(50)}, {})


def drawn(prepared: Prepared, examples: int, seed: int = 0, task: str = "a") -> Sample:
    return draw(prepared, examples, seed, task)


def test_the_sample_is_a_function_of_seed_and_task_alone_and_not_the_first_examples(numbered: Prepared) -> None:
    sample = drawn(numbered, 10)
    assert sample == drawn(numbered, 10)
    assert len(set(sample.numbers)) == 10 < max(sample.numbers)
    assert sample.numbers != drawn(numbered, 10, seed=1).numbers != drawn(numbered, 10, task="b").numbers
    assert set(sample.numbers) < set(drawn(numbered, 20).numbers)


def test_where_there_are_fewer_examples_all_are_taken_and_none_is_refused(numbered: Prepared, tmp_path: Path) -> None:
    assert drawn(numbered, 256).numbers == tuple(range(50))
    with pytest.raises(InputError, match="no examples to measure a on; name another split under validation"):
        drawn(prepared_in(tmp_path / "none", "regression", {"number": torch.arange(0)}, {}), 10)


def test_texts_are_read_without_padding(tmp_path: Path) -> None:
    network, sample = text_sample(tmp_path, "bert")
    seen = 0
    for batch in sample.batches(network, 2):
        lengths = batch["attention_mask"].sum(dim=1)
        assert len(lengths) <= 2
        assert set(lengths.tolist()) == {int(lengths[0])}
        seen += len(lengths)
    assert seen == len(sample)


def test_pictures_are_read_in_order_and_what_is_no_input_is_refused(tmp_path: Path) -> None:
    network, _, sample = clip_sample(tmp_path)
    read = torch.cat([batch["pixels"] for batch in sample.batches(network, 3)])
    assert torch.equal(read, sample.prepared.array("pixels")[list(sample.numbers)])
    documents = prepared_in(tmp_path / "documents", "language_model", {"document": torch.arange(3)}, {})
    with pytest.raises(InputError, match="a network's inputs, which are not prepared of language_model; choose"):
        next(drawn(documents, 2).batches(network, 3))


def test_labels_are_drawn_as_often_as_the_model_says(numbered: Prepared) -> None:
    logits, sample = torch.tensor([0.0, 1.0, -2.0, 0.5]), drawn(numbered, 1)
    labels = torch.tensor([draw_label(logits, sample, number) for number in range(2000)])
    shares, expected = torch.bincount(labels, minlength=4) / 2000, torch.softmax(logits, dim=0)
    assert ((shares - expected).abs() < 5 * (expected * (1 - expected) / 2000).sqrt()).all()
    assert labels.tolist() == [draw_label(logits, sample, number) for number in range(2000)]
