"""A few hundred of the inputs that `python -m tests.faults.fuzz` feeds to each reader."""

import pytest

from tests.faults.fuzz import READERS, fuzz


@pytest.mark.parametrize("name", READERS)
def test_nothing_but_an_input_error_comes_out_of_a_reader(name: str) -> None:
    tried = fuzz(READERS[name], 200)
    assert tried.total() >= 200
    assert tried["refused"] > 50
