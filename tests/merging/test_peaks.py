"""No merge takes more memory than its method declares, by which the driver chooses how many to run at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from merganser import registry
from tests.merging.peaks import CLEAR

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.drill
@pytest.mark.skipif(not CLEAR.exists(), reason="what a process holds is read from Linux's /proc")
def test_a_merge_takes_no_more_memory_than_its_method_declares() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.merging.peaks"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = {one["method"]: one for one in map(json.loads, run.stdout.splitlines())}
    assert list(found) == registry.names()
    beyond = [one for name, one in found.items() if one["copies"] > registry.get(name).copies]
    assert not beyond, f"more than the method declares as copies: {beyond}"
