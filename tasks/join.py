"""Decompose all tasks' matrices together, once for all methods that need it; what is there and matches is kept."""

from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.inputs.deltas import open_deltas
from merganser.inputs.joints import BASES, join, link_deltas
from merganser.inputs.joints import DELTAS as OWN_DELTAS
from merganser.inputs.layers import Side
from merganser.outputs import fresh_folder
from merganser.workers import threads_wanted
from tasks.stage import only_name, run
from tasks.stages import DELTAS, JOINTS


def join_tasks(name: str, tasks: list[str], side: Side, threads: int = 1) -> tuple[int, int]:
    """Write the bases of all tasks' matrices, and the deltas beside them; return how many were made, and kept."""
    with fresh_folder(JOINTS / name / OWN_DELTAS) as folder:
        link_deltas({task: DELTAS / f"{task}.safetensors" for task in tasks}, folder)
    return join(open_deltas(DELTAS, tasks), side, JOINTS / name / BASES, threads)


def main(argv: list[str]) -> None:
    """Decompose what the command line names."""
    name = only_name(argv, "join")
    params = load_params()
    joint = declared(params.joints, name, "joints")
    done, kept = join_tasks(name, list(params.tasks), joint.side, threads_wanted())
    print(f"{name}: {done} matrices of all tasks decomposed, {kept} were there")


if __name__ == "__main__":
    run(main)
