"""An overlay file whose tasks are renamed is the one that a merge of tasks of these names writes."""

from pathlib import Path

import pytest
import torch

from merganser.overlays import FILE, Dense, LowRank, OverlayWriter, Parts
from merganser.overlays.index import rename_tasks


def write(folder: Path, tasks: tuple[str, str], mixed: bool) -> Path:
    """Write the parts of two tasks, one of which has none of a parameter; they are the same whatever the names."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    first, second = tasks
    mixtures = {first: {first: 0.5, second: 0.5}} if mixed else {}
    with OverlayWriter(folder, tasks) as writer:
        dense = {task: Dense(torch.randn(6, generator=generator)) for task in tasks}
        writer.add("bias", Parts(dense, mixtures=mixtures), (6,))
        u, s, vh = (torch.randn(size, generator=generator) for size in ((6, 2), (2,), (2, 4)))
        writer.add("weight", Parts({second: LowRank(u.half(), s, vh.half())}, mixtures=mixtures), (6, 4))
    return folder / FILE


@pytest.mark.parametrize("mixed", [False, True])
def test_the_bytes_are_those_of_a_merge_under_the_new_name(tmp_path: Path, mixed: bool) -> None:
    found = write(tmp_path / "found", ("dark", "light"), mixed)
    rename_tasks(found, {"dark": "a-much-longer-name"})
    assert found.read_bytes() == write(tmp_path / "expected", ("a-much-longer-name", "light"), mixed).read_bytes()
