"""Run one stage of the suite in `examples/`: `python -m suite data|pretrain|finetune [TASK]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common.stages import named, read_settings, use_threads
from suite.settings import Settings

SUITE = Path("suite")
HUB, DATASETS, BASE = SUITE / "hub", SUITE / "datasets", SUITE / "hub/base"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m suite", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("pretrain", help="train the base model")
    for name, summary in (("data", "draw a task's images"), ("finetune", "fine-tune the base on a task")):
        stages.add_parser(name, help=summary).add_argument("task", type=named, help="@: as DVC_STAGE has it")
    options = parser.parse_args(arguments)
    settings = read_settings(SUITE / "params.yaml", Settings)
    if options.stage == "data":
        from suite.data import write_dataset

        write_dataset(options.task, settings.seed, settings.data, DATASETS / options.task)
        return
    use_threads(2 if options.stage == "pretrain" else 1)  # all else waits for the base
    if options.stage == "pretrain":
        from suite.pretrain import pretrain

        pretrain(settings.seed, settings.pretrain, BASE)
    else:
        from suite.finetune import finetune

        dataset, out = DATASETS / options.task, HUB / options.task
        finetune(options.task, settings.seed, settings.finetune, BASE, dataset, out)


if __name__ == "__main__":
    main()
