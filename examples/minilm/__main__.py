"""Run one stage of the suite `minilm` in `examples/`: `python -m minilm ratings|data|finetune [TASK]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common.stages import named, read_settings, use_threads
from minilm.settings import Settings

SUITE = Path("minilm")
RATINGS, DATASETS, MODELS = SUITE / "ratings", SUITE / "datasets", SUITE / "hub"
BASE, CONSTRAINTS = SUITE / "base.yaml", Path("../constraints.txt")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names."""
    options = _parser().parse_args(arguments)
    settings = read_settings(SUITE / "params.yaml", Settings)
    seed = settings.seed if options.seed is None else options.seed
    if options.stage == "finetune":
        use_threads(1)
        from merganser.sources.pointers import local_path
        from minilm.finetune import finetune

        base = local_path(BASE)
        assert base is not None, f"{BASE} points to a hub"
        finetune(seed, settings.finetune, base, DATASETS / options.task, MODELS / options.task)
        return
    from minilm.data import check_versions, download_ratings, write_data

    if options.stage == "ratings":
        download_ratings(SUITE / "ratings.txt", RATINGS)
    else:
        check_versions(CONSTRAINTS)
        write_data(options.task, seed, settings.data, RATINGS, DATASETS / options.task)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minilm", description=__doc__)
    parser.add_argument("--seed", type=int, help="in place of params.yaml's")
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("ratings", help="download the rated texts")
    for stage, does in (("data", "write a task's splits"), ("finetune", "train the base on a task")):
        stages.add_parser(stage, help=does).add_argument("task", type=named, help="@: as DVC_STAGE has it")
    return parser


if __name__ == "__main__":
    main()
