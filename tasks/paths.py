"""Where the stages' files lie: dvc.yaml has the same paths."""

import shutil
from collections.abc import Sequence
from pathlib import Path

BASE = Path("data/base")
CHECKPOINTS = Path("data/checkpoints")
CODE = Path("data/code")
DATA = Path("data")
DATASETS = Path("data/datasets")
DELTAS = Path("data/deltas")
DIFFERENCES = Path("data/differences")
EMBEDDINGS = Path("data/embeddings")
EXAMPLES = Path("data/examples")
FACTORS = Path("data/svd")
HEADS = Path("data/heads")
JOINTS = Path("data/joints")
LEARNED = Path("data/learned")
MERGED = Path("data/merged")
MERGE_MEASURES = Path("data/measures/merged")
MERGE_PROFILES = Path("data/profiles/merge")
METRICS = Path("data/metrics")
PREPARED = Path("data/prepared")
PROFILES = Path("data/profiles")  # of merges, and by what entries read: how long it took
PREVIOUS_METRICS = Path(".dvcfleet/previous_metrics.json")  # the numbers, as the present run found them
PUBLISHED = Path("data/measures/published.json")
RANK_STUDIES = Path("data/measures/studies/rank")
RECORDS = Path("data/records")
REPORT = Path("report")
ROUTERS = Path("data/routers")
SEARCHES = Path("data/searches")
SOURCES = Path("data/sources")
STATISTICS = Path("data/statistics")
SURGERY = Path("data/surgery")
TASK_MEASURES = Path("data/measures/tasks.json")
TASK_STUDIES = Path("data/measures/studies/tasks")
VALIDATION = Path("data/validation")

SEEDS = "seeds"  # in the folder of what is drawn: a folder for each seed after the first


def seed_folders(folder: Path, seeds: Sequence[int]) -> dict[int, Path]:
    """Return where in a folder each seed's own lies: the first one's in the folder itself."""
    return {seed: folder / SEEDS / str(seed) if number else folder for number, seed in enumerate(seeds)}


def remove_other_seeds(folder: Path, seeds: Sequence[int]) -> None:
    """Remove from a folder that is kept what lies there of seeds that are no longer wanted."""
    for found in (folder / SEEDS).glob("*"):
        if found not in seed_folders(folder, seeds).values():
            shutil.rmtree(found)
    if len(seeds) == 1:
        shutil.rmtree(folder / SEEDS, ignore_errors=True)
