"""Make the suites' packages importable: their stages run in examples/, so they are not installed ones."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
