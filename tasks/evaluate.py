"""Evaluate one entry's merge on one task."""

from pathlib import Path

import numpy as np

from merganser.at_run_time import addition_of
from merganser.at_run_time.measuring import score_merges
from merganser.config.params import Params
from merganser.evaluation.examples import Results, write_results
from merganser.outputs import write_json
from merganser.overlays import open_overlays
from tasks.scoring import open_task
from tasks.stage import check_found, run, stage
from tasks.stages import EXAMPLES, MERGED, METRICS, PREPARED, SEEDS


@stage("methods", "tasks")
def main(params: Params, entry: str, task: str) -> None:
    """Score one task with its own model out of an entry's merge, or out of those with each seed.

    What is rebuilt of a task's parts is run as the task's own checkpoint says, any other merge as the base. Writes the
    score, and what the merge made of each example.
    """
    check_found("families", params.base.family)
    if task not in params.measured:
        write_results(EXAMPLES / entry / f"{task}.safetensors", Results(score=np.zeros(0)))
        write_json(METRICS / entry / f"{task}.json", {"count": 0})
        print(f"{task}: no data, it is merged and not measured")
        return
    merged, addition = MERGED / entry, addition_of(MERGED / entry)
    parts = open_overlays(merged) is not None
    setup = rebuilt = open_task(params, task, PREPARED, merged, own=parts and addition is None)
    if addition and parts and setup.prepared.own is not None:
        rebuilt = open_task(params, task, PREPARED, merged, own=True)
    seeds = sorted((merged / SEEDS).glob("*"), key=lambda folder: int(folder.name))
    folders, size = [merged, *seeds], params.evaluation.batch_size
    if addition:
        check_found("additions", Path(addition.FILE).stem)
    score, results = score_merges(setup, folders, task, size, rebuilt)
    write_results(EXAMPLES / entry / f"{task}.safetensors", results)
    write_json(METRICS / entry / f"{task}.json", score)
    label = f", {score['known']:.4f} with its label, router {score['router']:.4f}" if "known" in score else ""
    label += "".join(f", {name} {value:.4f}" for name, value in score.get("data_sets", {}).items())
    several = f", the mean of {len(folders)} seeds" if seeds else ""
    print(f"{entry} on {task}: {score['metric']} {score['value']:.4f} on {score['count']} examples{label}{several}")


if __name__ == "__main__":
    run(main)
