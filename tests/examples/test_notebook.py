"""The notebook: all its code, run in order as its reader runs it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import ROOT

NOTEBOOK = ROOT / "examples/merge.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return found


def test_the_notebook_stores_no_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_the_notebook_runs_and_what_it_says_of_the_scores_is_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cell for cell in cells() if cell["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    scores = names["scores"].pivot(index="method", columns="task", values="value").to_dict(orient="index")
    assert scores["tsv_c"] == scores["individual"]
    for task in ("cat", "rain"):
        assert scores["individual"][task] > 0.95
        assert scores["tsv_m"][task] <= scores["base"][task] + 0.05
    said = capsys.readouterr().out
    assert "missing_keys=[]" in said or "All keys matched" in said
