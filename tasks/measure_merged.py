"""Measure what the merge by one entry of `methods` holds of each task."""

from merganser.checkpoints.reading import open_for_merging
from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.inputs.deltas import open_deltas
from merganser.measures import defined
from merganser.measures.merged import measure_merge
from merganser.outputs import write_json
from tasks.stage import only_name, run
from tasks.stages import BASE, DELTAS, MERGE_MEASURES, MERGED


def main(argv: list[str]) -> None:
    """Measure the entry named on the command line."""
    key = only_name(argv, "measure_merged")
    params = load_params()
    declared(params.methods, key, "methods")
    found = measure_merge(MERGED / key, open_for_merging(BASE), open_deltas(DELTAS, list(params.tasks)))
    write_json(MERGE_MEASURES / f"{key}.json", defined(found))


if __name__ == "__main__":
    run(main)
