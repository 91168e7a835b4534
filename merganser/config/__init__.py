"""params.yaml: read, and checked against the methods and the models' headers."""

from pathlib import Path

PARAMS = Path("params.yaml")
CHECKED = "MERGANSER_CHECKED"  # set by a run for its stages: the sha256 of the params.yaml that it checked
POINTS_FILE = Path("points.yaml")  # the merges that studies and searches measure, which dvc.yaml reads
