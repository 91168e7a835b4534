"""A measure is a function, its call, and a line for each place where the report shows it."""

import csv
from pathlib import Path

import pytest
import torch

from merganser.checkpoints.reading import open_checkpoint
from tests.chapters import Copy
from tests.tasks.comparison import TASKS

FUNCTION = '''
"""The largest singular value."""

from torch import Tensor


def spectral_norm(s: Tensor) -> float:
    """Return the largest of some singular values (R).

    >>> import torch
    >>> spectral_norm(torch.tensor([2.0, 1.0]))
    2.0
    """
    return float(s.double().max())
'''
FIGURE = '    "spectral_norm": ("spectral norm", (LineStyle("spectral_norm", "mean over tasks"),)),\n'
PLACE = '    <figure class="full">{{ plots.spectral_norm }}<figcaption>Spectral norm.</figcaption></figure>\n'
LINES = {
    "merganser/measures/tasks.py": {
        "from merganser.operators.drm": "from merganser.measures.spectral import spectral_norm\n",
        '        "energy_share": ': '        "spectral_norm": [spectral_norm(f.s) for f in tasks],\n',
    },
    "merganser/report/scores.py": {'    "energy_share": (': '    "spectral_norm": ("spectral_norm",),\n'},
    "merganser/report/sections/depth.py": {'    "interference": (\n': FIGURE},
    "merganser/report/sections/depth.html.j2": {'    <figure class="full">{{ plots.effective_rank': PLACE},
    "merganser/report/sections/explanations/points.py": {
        '    "cosine": "cosine between': '    "spectral_norm": "spectral norm",\n',
        '        "reconstruction_own": _stacked': '        "spectral_norm": _stacked(measured, "spectral_norm"),\n',
    },
}
MEASURE = """
from merganser.tasks import measure, record
from tests.tasks.comparison import METHODS, plots_of, report_without_plots

measure.main([])
for entry in METHODS:
    record.main([entry])
report_without_plots(lambda found: plots_of(found, "depth"))
"""


def test_a_measure_is_a_function_and_a_line_for_each_place_that_shows_it(folder: Path, tmp_path: Path) -> None:
    copy = Copy(tmp_path / "code", "Add a measure")
    copy.add("merganser/measures/spectral.py", FUNCTION)
    for path, inserted in LINES.items():
        for before, text in inserted.items():
            copy.insert(path, text, before)
    done = copy.run("-c", MEASURE, folder=folder)
    assert done.returncode == 0, done.stderr
    deltas = [open_checkpoint(folder / f"data/deltas/{task}.safetensors") for task in TASKS]
    table = list(csv.DictReader((folder / "report/plots/layers.csv").open()))
    for row in table:
        norms = [float(torch.linalg.matrix_norm(each.read(row["layer"]).flatten(1), 2)) for each in deltas]
        assert float(row["spectral_norm"]) == pytest.approx(sum(norms) / len(TASKS), rel=1e-5)
    page = (folder / "report/index.html").read_text()
    assert "<figcaption>Spectral norm.</figcaption>" in page
    assert "<span>spectral norm</span>" in page
    explained = list(csv.DictReader((folder / "report/explanations.csv").open()))
    found = {row["points"] for row in explained if row["measure"] == "spectral_norm" and not row["layer"]}
    assert found == {"tasks", "subsets × entries"}
    assert "spectral norm" in page[page.index('<section id="explanations">') :].partition("</section>")[0]
