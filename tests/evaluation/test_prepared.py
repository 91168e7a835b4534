"""Prepared data: written as it comes, read batch by batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import get_kind, kind_names
from merganser.evaluation.prepared import Prepared, write_prepared

ABOUT = {"kind": "image_classification", "settings": {}, "metric": "accuracy", "classes": ["a", "é"]}


def chunks(*counts: int) -> Iterator[dict[str, Tensor]]:
    start = 0
    for count in counts:
        numbers = torch.arange(start, start + count)
        yield {"pixels": numbers[:, None, None].expand(-1, 2, 3).to(torch.uint8), "label": numbers}
        start += count


@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_what_comes_in_chunks_is_read_in_batches_of_any_size(tmp_path: Path, size: int) -> None:
    assert write_prepared(tmp_path, chunks(3, 5, 1), ABOUT) == 9
    prepared = Prepared(tmp_path)
    assert (len(prepared), prepared.classes) == (9, ["a", "é"])
    found = list(prepared.batches(["pixels", "label"], size))
    assert {len(batch["label"]) for batch in found[:-1]} <= {size}
    (whole,) = chunks(9)
    for name, expected in whole.items():
        assert torch.equal(torch.cat([batch[name] for batch in found]), expected)
        assert torch.equal(prepared.array(name), expected)
        assert torch.equal(load_file(tmp_path / f"{name}.safetensors")[name], expected)


def test_the_same_rows_in_other_chunks_are_the_same_bytes(tmp_path: Path) -> None:
    for name, counts in (("one", (9,)), ("more", (3, 5, 1))):
        (tmp_path / name).mkdir()
        write_prepared(tmp_path / name, chunks(*counts), ABOUT)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "more")]
    assert files[0] == files[1]


def test_data_that_is_missing_or_not_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no prepared data; run the stage prepare first"):
        len(Prepared(tmp_path))
    write_prepared(tmp_path, chunks(4), ABOUT)
    label = tmp_path / "label.safetensors"
    label.write_bytes(label.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated or corrupt"):
        Prepared(tmp_path).array("label")
    (tmp_path / "prepared.json").write_text('{"kind": "x"}')
    with pytest.raises(InputError, match="does not describe the prepared data"):
        len(Prepared(tmp_path))


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    assert "image_classification" in kind_names()
    with pytest.raises(InputError, match=r"'image_clasification' is not a kind of task; known: .*\"image_classif"):
        get_kind("image_clasification")
