"""Some of the kills that `python -m tests.faults.kills` tries by the hundred."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.kills import try_runs, try_stages
from tests.faults.pipeline import Tiny


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_a_run_killed_at_any_file_operation_ends_well_afterwards(tmp_path: Path) -> None:
    hits = sum(hit for _, hit in try_runs(tmp_path, 6, random.Random(0)))
    assert hits >= 5


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_a_stage_killed_at_any_file_operation_ends_well_afterwards(tmp_path: Path) -> None:
    tiny = Tiny(tmp_path, "decompose@dark", "join@rows", "merge@average", "merge@ties")
    hits = Counter(kind for kind, hit in try_stages(tiny, 30) if hit)
    assert hits["a process of decompose"] >= 4
    assert hits["a process of join"] >= 4
    assert hits["a process of merge"] >= 3
