import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from merganser.errors import InputError
from merganser.tasks import decompose, extract, fetch, measure, measure_merged, merge
from tests.tasks.comparison import TASKS, inside, write_params, write_sources

ENTRIES = ("average", "tsv_c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a comparison whose merges are ready to be measured, and work in it."""
    made = tmp_path_factory.mktemp("measure")
    write_params(made)
    write_sources(made / "sources")
    with inside(made):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            extract.main([task])
            decompose.main([task])
        for entry in ENTRIES:
            merge.main([entry])
        yield made


def strict(path: Path) -> Any:
    """Read JSON that every reader can read: without NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path} holds {word}")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_the_tasks_are_measured_layer_by_layer(folder: Path) -> None:
    measure.main([])
    found = strict(folder / "data/measures/tasks.json")
    assert found["tasks"] == sorted(TASKS)
    matrices = [layer for layer in found["layers"].values() if layer["kind"] == "matrix"]
    assert matrices
    for layer in matrices:
        assert len(layer["effective_rank"]) == len(layer["cosines"]) == len(TASKS)


def test_merges_are_measured_by_what_they_give_out(folder: Path) -> None:
    found = {}
    for entry in ENTRIES:
        measure_merged.main([entry])
        found[entry] = strict(folder / f"data/measures/merged/{entry}.json")
    assert not found["average"]["parts"]
    assert all(0.5 < value <= 1 for value in found["average"]["sar"])
    assert found["tsv_c"]["parts"]
    assert all(0 < value < 1 for value in found["tsv_c"]["error"])


def test_the_same_inputs_give_the_same_bytes(folder: Path) -> None:
    files = [folder / "data/measures/tasks.json", folder / "data/measures/merged/average.json"]
    contents = []
    for _ in range(2):
        measure.main([])
        measure_merged.main(["average"])
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]


def test_what_is_not_declared_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(InputError, match=r'no "avrage" under methods.*did you mean "average"'):
        measure_merged.main(["avrage"])
    with pytest.raises(InputError, match=r"tasks\.measure: expected no arguments, got average"):
        measure.main(["average"])
