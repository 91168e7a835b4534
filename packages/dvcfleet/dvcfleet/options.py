"""What to run, in the words of `dvc repro`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The options of a run that say what to run; names and meanings are those of `dvc repro`.

    The last five are the engine's own: `in_order` runs one stage at a time in the order of `dvc repro`, and none after
    one that failed; `prune` removes the outputs of stages that are no longer in dvc.yaml from the workspace;
    `fetch_results` fetches what nodes with their own clones wrote; `save_experiment` saves the run as a DVC experiment,
    as a project's runs may be anyway; `folder` is where targets that are paths start, if not in the current folder.
    """

    targets: tuple[str, ...] = ()
    glob: bool = False
    recursive: bool = False
    single_item: bool = False
    pipeline: bool = False
    all_pipelines: bool = False
    downstream: bool = False
    force: bool = False
    force_downstream: bool = False
    pull: bool = False
    allow_missing: bool = False
    no_run_cache: bool = False
    no_commit: bool = False
    in_order: bool = False
    prune: bool = False
    fetch_results: bool = False
    save_experiment: bool = False
    folder: Path = Path()


EVERYTHING = Options()
