"""Where the stages' files lie: dvc.yaml has the same paths."""

from pathlib import Path

CARD = "README.md"  # in the folder of a merged model

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
PREVIOUS_METRICS = Path(".dvcfleet/previous_metrics.json")  # the numbers, as the present run found them
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

SEEDS = "seeds"  # in the folder of a merged model: a folder for each seed after the first


def seed_folder(entry: str, seed: int) -> Path:
    """Return the folder of an entry's merge with one of its further seeds."""
    return MERGED / entry / SEEDS / str(seed)
