"""Run one stage of the text suites in `examples/`: `python -m texts data|encoder|causal [STAGE] [TASK]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common.stages import named, read_settings, use_threads
from texts.settings import Settings

SUITE = Path("texts")
DATASETS, ENCODER, CAUSAL = SUITE / "datasets", SUITE / "encoder/hub", SUITE / "causal/hub"
HEADS = ENCODER / "heads"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stage that the command line names."""
    options = _parser().parse_args(arguments)
    settings = read_settings(SUITE / "params.yaml", Settings)
    if options.suite == "data":
        from texts.data import write_dataset

        write_dataset(options.task, settings.seed, settings.data, DATASETS / options.task)
        return
    use_threads(2 if options.stage == "pretrain" else 1)  # all else waits for the base
    if options.suite == "encoder":
        _train_encoder(options, settings)
    else:
        _train_causal(options, settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m texts", description=__doc__)
    first = parser.add_subparsers(dest="suite", required=True)
    first.add_parser("data", help="draw a task's texts").add_argument("task", type=named, help="@: as DVC_STAGE has it")
    for suite, tuning in (("encoder", "finetune"), ("causal", "adapt")):
        stages = first.add_parser(suite, help=f"train the {suite} suite").add_subparsers(dest="stage", required=True)
        stages.add_parser("pretrain", help="train the base model")
        stages.add_parser(tuning, help="train the base on a task").add_argument("task", type=named)
    return parser


def _train_encoder(options: argparse.Namespace, settings: Settings) -> None:
    if options.stage == "pretrain":
        from texts.encoder.pretrain import pretrain

        pretrain(settings.seed, settings.encoder.pretrain, ENCODER / "base", HEADS)
    else:
        from texts.encoder.finetune import finetune

        task = options.task
        dataset, out = DATASETS / task, ENCODER / task
        finetune(task, settings.seed, settings.encoder.finetune, ENCODER / "base", HEADS, dataset, out)


def _train_causal(options: argparse.Namespace, settings: Settings) -> None:
    if options.stage == "pretrain":
        from texts.causal.pretrain import pretrain

        pretrain(settings.seed, settings.causal.pretrain, CAUSAL / "base")
    else:
        from texts.causal.adapt import adapt

        task = options.task
        adapt(task, settings.seed, settings.causal.adapt, CAUSAL / "base", DATASETS / task, CAUSAL / task)


if __name__ == "__main__":
    main()
