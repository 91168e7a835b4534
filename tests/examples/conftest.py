"""Make the suites' packages importable: their stages run in examples/, so they are not installed ones."""

import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from texts import drawing

# A process of a stage draws 24,000 texts for it, once.
vars(drawing)["vocabulary"] = cache(drawing.vocabulary)
