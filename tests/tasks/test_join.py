"""The stage that decomposes all tasks' matrices together, and the merges that read what it wrote."""

from pathlib import Path
from typing import Any

import pytest

from merganser.errors import InputError
from merganser.tasks import extract, fetch, join, merge
from tests.tasks.comparison import TASKS, inside, write_params, write_sources
from tests.tasks.test_difference import change_params

METHODS: dict[str, dict[str, Any]] = {
    "drm_h": {"method": "drm_h", "reads": "joints/rows"},
    "drm_v": {"method": "drm_v", "reads": "joints/columns"},
    "knots": {"method": "knots", "reads": "joints/rows", "density": 0.5},
    "knots_dare": {"method": "knots", "reads": "joints/rows", "inner": "dare", "scaling": 0.4},
}


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Carry a comparison as far as the merges of joints, and of the same entries that read deltas."""
    folder = tmp_path_factory.mktemp("joints")
    plain = {f"{name}_plain": entry | {"reads": "deltas"} for name, entry in METHODS.items()}
    write_params(folder, METHODS | plain)
    change_params(folder, joints={"rows": {"side": "rows"}, "columns": {"side": "columns"}})
    write_sources(folder / "sources")
    with inside(folder):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            extract.main([task])
        for name in ("rows", "columns"):
            join.main([name])
        for entry in [*METHODS, *plain]:
            merge.main([entry])
    return folder


@pytest.mark.parametrize("entry", METHODS)
def test_an_entry_that_reads_a_joint_writes_what_it_writes_from_deltas(entry: str, carried: Path) -> None:
    found, expected = (carried / "data/merged" / name for name in (entry, f"{entry}_plain"))
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_a_joint_has_the_deltas_as_links_and_a_file_a_matrix(carried: Path) -> None:
    folder = carried / "data/joints/rows"
    assert sorted(path.name for path in folder.iterdir()) == ["bases", "deltas"]
    assert sorted(path.stem for path in (folder / "deltas").iterdir()) == sorted(TASKS)
    for path in (folder / "deltas").iterdir():
        assert path.samefile(carried / "data/deltas" / path.name)
    assert "visual.proj.safetensors" in {path.name for path in (folder / "bases").iterdir()}


def test_a_joint_made_again_keeps_its_bases(carried: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with inside(carried):
        join.main(["rows"])
    count = len(list((carried / "data/joints/rows/bases").iterdir()))
    assert capsys.readouterr().out == f"rows: 0 matrices of all tasks decomposed, {count} were there\n"


def test_a_joint_that_is_not_declared_is_refused(carried: Path) -> None:
    with inside(carried):
        with pytest.raises(InputError, match=r'no "row" under joints in params\.yaml; did you mean "rows"'):
            join.main(["row"])
        with pytest.raises(InputError, match=r"merganser.tasks.join: expected one name, got nothing"):
            join.main([])
