"""What data an entry had, by what it reads and what that was computed from."""

from pathlib import Path
from typing import Any

import pytest

from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.tasks import data_class, is_transductive
from merganser.errors import InputError
from tests.config.test_params import Content, changed, write

LEARNED = {"ada": {"learner": "adamerging", "of": "deltas"}}
SEARCHES = {"grid": {"method": "ties", "of": "deltas"}}
ENTRIES: dict[str, dict[str, Any]] = {
    "plain": {"method": "ties", "reads": "deltas"},
    "tuned": {"method": "ties", "reads": "searches/grid"},
    "learned": {"method": "adamerging", "reads": "learned/ada"},
    "from_tuned": {"method": "svd", "reads": "differences/tuned"},
    "from_learned": {"method": "svd", "reads": "differences/learned"},
    "from_plain": {"method": "svd", "reads": "differences/plain"},
}


def content(split: str = "validation", **more: Any) -> Content:
    """Declare entries of each class."""
    found = changed(lambda c: c.update(validation={"split": split}, learned=LEARNED, searches=SEARCHES, **more))
    found["methods"].update(ENTRIES)
    found["differences"] |= {name: {"merged": name} for name in ("plain", "tuned", "learned")}
    return found


def load(folder: Path, given: Content) -> Params:
    return load_params(write(folder, given))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("plain", "NDI"),
        ("tsv_m", "NDI"),
        ("tuned", "VDI"),
        ("learned", "TTA"),
        ("from_plain", "NDI"),
        ("from_tuned", "VDI"),
        ("from_learned", "TTA"),
    ],
)
def test_an_entrys_class_is_that_of_all_it_was_computed_from(tmp_path: Path, entry: str, expected: str) -> None:
    params = load(tmp_path, content())
    assert data_class(params, params.methods[entry]) == expected
    assert not is_transductive(params, params.methods[entry])


def without_searches(split: str) -> Content:
    found = content(split)
    del found["searches"], found["methods"]["tuned"], found["methods"]["from_tuned"], found["differences"]["tuned"]
    return found


def test_adaptation_may_read_the_split_that_is_measured_on_and_is_called_transductive(tmp_path: Path) -> None:
    params = load(tmp_path, without_searches("test"))
    found = {name for name, entry in params.methods.items() if is_transductive(params, entry)}
    assert found == {"learned", "from_learned"}


def test_what_reads_labels_may_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only adaptation without labels may read that one"):
        load(tmp_path, content("test"))


def test_learning_from_labels_is_validation_data_and_may_not_read_the_split_that_is_measured_on(tmp_path: Path) -> None:
    found = without_searches("validation")
    found["learned"] = LEARNED | {"regions": {"learner": "localize_stitch_learned", "of": "deltas"}}
    found["methods"]["regions"] = {"method": "localize_stitch_learned", "reads": "learned/regions"}
    params = load(tmp_path, found)
    assert data_class(params, params.methods["regions"]) == "VDI"
    with pytest.raises(InputError, match="only adaptation without labels may read that one"):
        load(tmp_path, found | {"validation": {"split": "test"}})
