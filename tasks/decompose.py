"""Decompose one task's matrices; what is already there and matches is kept."""

from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.factors import FactorSettings, decompose
from merganser.workers import threads_wanted
from tasks.stage import only_name, run
from tasks.stages import DELTAS, FACTORS


def main(argv: list[str]) -> None:
    """Decompose the task named on the command line."""
    task = only_name(argv, "decompose")
    params = load_params()
    declared(params.tasks, task, "tasks")
    settings = FactorSettings(params.decompose.rank_fraction, params.decompose.dtype)
    done, kept = decompose(DeltaFile(DELTAS / f"{task}.safetensors"), settings, FACTORS / task, threads_wanted())
    print(f"{task}: {done} matrices decomposed, {kept} were there")


if __name__ == "__main__":
    run(main)
