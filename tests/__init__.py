"""The tests. Whatever imports a module of theirs lives apart from the user's home from then on."""

import os
from pathlib import Path

from tests.isolation import live_apart

_ROOT = Path(__file__).resolve().parents[1]
# of a process that runs this checkout's code, in whatever folder
PYTHONPATH = os.pathsep.join([str(_ROOT), str(_ROOT / "packages/dvcfleet")])

live_apart()
