"""Measure how much of each task's delta the merge of one entry contains."""

from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.inputs.deltas import open_deltas
from merganser.measures import defined
from merganser.measures.merged import measure_merge
from merganser.outputs import write_json
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import BASE, DELTAS, MERGE_MEASURES, MERGED
from merganser.workers import threads_wanted


@stage("methods")
def main(params: Params, key: str) -> None:
    """Measure the entry named on the command line."""
    deltas = open_deltas(DELTAS, list(params.tasks))
    measures = measure_merge(MERGED / key, open_for_merging(BASE), deltas, threads_wanted())
    write_json(MERGE_MEASURES / f"{key}.json", defined(measures))


if __name__ == "__main__":
    run_main(main)
