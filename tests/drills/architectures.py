"""Merge tiny models of eighteen architectures that transformers saved, and hold each to its float64 formula."""

from pathlib import Path

from tests.checkpoints.merge_table import DTYPES, LAYOUTS, METHODS, rows, table
from tests.transformers_models import MODELS


def drill(folder: Path, sample: bool) -> None:
    """Merge all models by ten methods in each dtype and layout, or one by one, and print the table."""
    if sample:
        print(table(list(rows(folder, ["gpt2"], METHODS[:1], ["float32"], ["whole"]))), flush=True)
        return
    print(table(list(rows(folder, list(MODELS), METHODS, list(DTYPES), list(LAYOUTS)))), flush=True)
