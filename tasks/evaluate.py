"""Evaluate one entry's merge on one task."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from merganser.at_run_time import addition_of
from merganser.at_run_time.measuring import score_merges, score_served
from merganser.config.params import Params
from merganser.evaluation import AsksServers, get_kind
from merganser.evaluation.examples import Results, write_results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score
from merganser.inputs.heads import read_head
from merganser.outputs import write_json
from merganser.overlays import open_overlays
from merganser.tasks.scoring import open_task
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import EXAMPLES, HEADS, MERGED, METRICS, PREPARED, SEEDS, SERVED


@stage("methods", "tasks")
def main(params: Params, entry: str, task: str) -> None:
    """Score one task with its own model from an entry's merge, or from the merges of all seeds.

    A model rebuilt from a task's parts runs with the configuration of the task's own checkpoint, any other merge
    with the base's. Writes the score and each example's result. With evaluation.server, a server scores the kinds
    of task that support it.
    """
    check_found("families", params.base.family)
    if task not in params.measured:
        write_results(EXAMPLES / entry / f"{task}.safetensors", Results(score=np.zeros(0)))
        write_json(METRICS / entry / f"{task}.json", {"count": 0})
        print(f"{task}: no data, it is merged and not measured")
        return
    merged = MERGED / entry
    seeds = sorted((merged / SEEDS).glob("*"), key=lambda folder: int(folder.name))
    folders, size = [merged, *seeds], params.evaluation.batch_size
    command = params.evaluation.server
    if command and isinstance(get_kind(params.tasks[task].kind), AsksServers):
        prepared, head = Prepared(PREPARED / task), read_head(HEADS / f"{task}.safetensors")
        check_found("kinds", prepared.about["kind"])
        score, results = score_served(command, prepared, folders, task, size, head, SERVED / f"{entry}-{task}")
    else:
        score, results = _scored_here(params, task, folders)
    write_results(EXAMPLES / entry / f"{task}.safetensors", results)
    write_json(METRICS / entry / f"{task}.json", score)
    label = f", {score['known']:.4f} with its label, router {score['router']:.4f}" if "known" in score else ""
    label += "".join(f", {name} {value:.4f}" for name, value in score.get("data_sets", {}).items())
    several = f", the mean of {len(folders)} seeds" if seeds else ""
    print(f"{entry} on {task}: {score['metric']} {score['value']:.4f} on {score['count']} examples{label}{several}")


def _scored_here(params: Params, task: str, folders: Sequence[Path]) -> tuple[Score, Results]:
    merged, addition = folders[0], addition_of(folders[0])
    parts = open_overlays(merged) is not None
    setup = rebuilt = open_task(params, task, PREPARED, merged, own=parts and addition is None)
    if addition and parts and setup.prepared.own is not None:
        rebuilt = open_task(params, task, PREPARED, merged, own=True)
    if addition:
        check_found("additions", Path(addition.FILE).stem)
    return score_merges(setup, folders, task, params.evaluation.batch_size, rebuilt)


if __name__ == "__main__":
    run_main(main)
