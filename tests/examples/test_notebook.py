"""The notebook: all its code, run in order as its reader runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import ROOT, environment

NOTEBOOK = ROOT / "examples/merge.ipynb"
RUN = """
import json, sys

names = {"__name__": "__main__"}
for number, code in enumerate(json.load(sys.stdin)):
    exec(compile(code, f"cell {number}", "exec"), names)
scores = names["scores"].pivot(index="method", columns="task", values="value")
print(json.dumps(scores.to_dict(orient="index")))
"""


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return found


def test_the_notebook_stores_no_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_the_notebook_runs_and_what_it_says_of_the_scores_is_so(tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(code),
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout.splitlines()[-1])
    assert scores["tsv_c"] == scores["individual"]
    for task in ("cat", "rain"):
        assert scores["individual"][task] > 0.95
        assert scores["tsv_m"][task] <= scores["base"][task] + 0.05
    assert "missing_keys=[]" in done.stdout or "All keys matched" in done.stdout
