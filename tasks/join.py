"""Decompose all tasks' matrices together, for all methods that need it; matching results already there are kept."""

from merganser.config.params import Params
from merganser.inputs.deltas import open_deltas
from merganser.inputs.joints import BASES, join, link_deltas
from merganser.inputs.joints import DELTAS as OWN_DELTAS
from merganser.outputs import fresh_folder
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import DELTAS, JOINTS
from merganser.workers import threads_wanted


@stage("joints")
def main(params: Params, name: str) -> None:
    """Write the bases of all tasks' matrices, and links to the deltas."""
    with fresh_folder(JOINTS / name / OWN_DELTAS) as folder:
        link_deltas({task: DELTAS / f"{task}.safetensors" for task in params.tasks}, folder)
    deltas, side = open_deltas(DELTAS, list(params.tasks)), params.joints[name].side
    done, kept = join(deltas, side, JOINTS / name / BASES, threads_wanted())
    print(f"{name}: {done} matrices of all tasks decomposed, {kept} were there")


if __name__ == "__main__":
    run_main(main)
