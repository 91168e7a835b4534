"""Decompose one task's matrices; matching results that are already there are kept."""

from merganser.config.params import Params
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.factors import FactorSettings, decompose
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import DELTAS, FACTORS
from merganser.workers import threads_wanted


@stage("tasks")
def main(params: Params, task: str) -> None:
    """Decompose the task named on the command line."""
    settings = FactorSettings(params.decompose.rank_fraction, params.decompose.dtype)
    done, kept = decompose(DeltaFile(DELTAS / f"{task}.safetensors"), settings, FACTORS / task, threads_wanted())
    print(f"{task}: {done} matrices decomposed, {kept} were there")


if __name__ == "__main__":
    run_main(main)
