import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset

from merganser.errors import InputError
from merganser.evaluation.evaluator import spread_rows
from merganser.evaluation.prepared import Prepared
from merganser.tasks import prepare_validation
from tests.tasks.comparison import inside
from tests.tiny_clip import pictures


@pytest.fixture
def folder(comparison: Path, tmp_path: Path) -> Iterator[Path]:
    """Give what the stage reads of a comparison."""
    shutil.copyfile(comparison / "params.yaml", tmp_path / "params.yaml")
    for name in ("base", "companions", "datasets"):
        shutil.copytree(comparison / "data" / name, tmp_path / "data" / name)
    with inside(tmp_path):
        yield tmp_path


def test_the_validation_split_is_prepared_beside_the_one_that_is_measured_on(folder: Path, comparison: Path) -> None:
    prepare_validation.main(["dark-split"])
    found, measured = Prepared(folder / "data/validation/dark"), Prepared(comparison / "data/prepared/dark")
    assert (len(found), len(measured)) == (6, 12)
    assert {**found.about, "count": 12} == measured.about
    assert found.array("label").tolist() == pictures(6)[1]
    assert found.array("pixels").shape[1:] == measured.array("pixels").shape[1:]
    assert found.array("pixels").dtype == torch.uint8


def test_a_task_without_the_split_is_named_with_those_that_it_has(folder: Path) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["tasks"]["dark"]["data"]["validation"] = "held_out"
    Path("params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(InputError, match=r"validation\.split: data/datasets/dark has no split 'held_out'; it has"):
        prepare_validation.main(["dark-split"])


def test_of_a_large_split_some_examples_are_taken_of_each_class_its_share(folder: Path) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["validation"] = {"split": {"name": "validation", "examples": 4}}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    prepare_validation.main(["dark-split"])
    labels = pictures(6)[1]
    found = Prepared(folder / "data/validation/dark").array("label").tolist()
    assert sorted(found) == [sorted(labels)[i] for i in (0, 1, 3, 4)]


def test_a_split_is_thinned_evenly_and_in_its_order() -> None:
    labels = [0, 0, 0, 0, 1, 1, 2, 0, 1, 2, 0, 0]  # of 0 seven, of 1 three, of 2 two
    rows = Dataset.from_dict({"label": labels})
    assert spread_rows(rows, 6) == [0, 2, 5, 6, 7, 11]
    assert Counter(labels[row] for row in spread_rows(rows, 6)) == {0: 4, 1: 1, 2: 1}
    assert spread_rows(Dataset.from_dict({"text": list("abcdef")}), 3) == [0, 2, 4]


def test_examples_without_a_label_are_taken_too() -> None:
    assert spread_rows(Dataset.from_dict({"label": [None, 1, None, 0, 1, 0]}), 3) == [0, 1, 3]
    assert spread_rows(Dataset.from_dict({"label": [[1, None], [1, 0], [0]]}), 2) == [1, 2]
