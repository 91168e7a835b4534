"""Every kind of bad input is refused by name, and nothing is lost by it."""

from pathlib import Path

import pytest

from tests.faults.bad_inputs import KINDS, attempt, make_grounds


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_grounds(tmp_path_factory.mktemp("grounds"))


@pytest.mark.parametrize("name", KINDS)
def test_bad_input_is_refused_by_name(name: str, grounds: dict[str, Path], tmp_path: Path) -> None:
    attempt(KINDS[name], grounds[KINDS[name].ground], tmp_path / "copy")


def test_there_are_many_kinds_of_it() -> None:
    assert len(KINDS) >= 60
