"""Run one stage of the suite in the folder of its `params.yaml`: `python -m suite data|pretrain|finetune [TASK]`."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from suite.settings import Settings, read_settings

HUB, DATASETS, BASE = Path("hub"), Path("datasets"), Path("hub/base")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m suite", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("pretrain", help="train the base model")
    for name, summary in (("data", "draw a task's images"), ("finetune", "fine-tune the base on a task")):
        stages.add_parser(name, help=summary).add_argument("task", type=named, help="@: as DVC_STAGE has it")
    options = parser.parse_args(arguments)
    settings = read_settings(Path("params.yaml"))
    if options.stage == "data":
        from suite.data import write_dataset

        write_dataset(options.task, settings.seed, settings.data, DATASETS / options.task)
    else:
        _train(options, settings)


def named(task: str) -> str:
    """Return a task's name: for @, what DVC calls this instance of its stage after the @."""
    return os.environ["DVC_STAGE"].partition("@")[2] if task == "@" else task


def _train(options: argparse.Namespace, settings: Settings) -> None:
    """Train with one thread: with more of them, the order of sums and so the bytes would depend on the machine."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if options.stage == "pretrain":
        from suite.pretrain import pretrain

        pretrain(settings.seed, settings.pretrain, BASE)
    else:
        from suite.finetune import finetune

        dataset, out = DATASETS / options.task, HUB / options.task
        finetune(options.task, settings.seed, settings.finetune, BASE, dataset, out)


if __name__ == "__main__":
    main()
