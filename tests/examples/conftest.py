"""Make the suite's package importable: its stages run in its own folder, so it is not an installed one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "suite"))
