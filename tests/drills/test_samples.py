"""A sample of each drill that `make drills` runs whole."""

from pathlib import Path

import pytest

from tests.drills.__main__ import DRILLS, TESTS, run

# The samples of the suites, and of a real model, train for a minute; tests/examples trains for two steps. tests/tasks
# kills what resume does, tests/flows/test_comparisons.py begins comparisons and comes back to one, but runs none, and
# tests/test_pipeline.py compares `dvc repro` with the tiny comparison's run. Remotes differ by what DVC does; a sample
# of nodes has a folder as its remote. tests/evaluation and tests/tasks/test_texts.py hold scores to transformers' and
# lm-eval's own, and tests/flows/test_suites.py the suites that the miniatures run. tests/flows/test_gc.py frees what
# nights leave. In tests/dvcfleet, test_twins.py has a repository without git and of another owner, and others that DVC
# and the engine run; test_crash_recovery.py has what a power cut tears, and test_ledger.py and test_lockfiles.py, as
# tests/flows, have damaged files.
ELSEWHERE = (
    TESTS,
    "containers",
    "damage",
    "differential",
    "power_cuts",
    "suites",
    "real",
    "resume",
    "comparisons",
    "repro",
    "remotes",
    "strangers",
    "miniatures",
    "nights",
)
SAMPLED = [name for name in DRILLS if name not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_of_a_drill_passes(name: str, tmp_path: Path) -> None:
    run(name, tmp_path / "drill", sample=True)
