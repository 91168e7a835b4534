"""Study one task's rank: the score of its own model with every matrix of its delta truncated to a share of the rank."""

from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.config.sections import RankStudy
from merganser.evaluation.scoring import score_of
from merganser.inputs.deltas import open_deltas
from merganser.inputs.factors import open_factors
from merganser.outputs import write_json
from merganser.studies.rank import fractions_of, truncated_model
from merganser.tasks.scoring import open_task
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, DELTAS, FACTORS, PREPARED, RANK_STUDIES


@stage("tasks", RankStudy.model_fields)
def main(params: Params, task: str, _: str) -> None:
    """Measure one task's model at every share of params.yaml and whole; write the curve as JSON."""
    check_found("families", params.base.family)
    base, setup = open_for_merging(BASE), open_task(params, task, PREPARED, BASE, own=True)
    deltas, factors = open_deltas(DELTAS, [task]), open_factors(FACTORS, [task])
    curve = []
    for fraction in fractions_of(params.studies.rank.fractions):
        setup.load(truncated_model(base, deltas, factors, fraction))
        score = score_of(setup.evaluator.metric, setup.results(params.evaluation.batch_size))
        curve.append({"fraction": fraction, **score, "device": setup.network.device.type})
        print(f"{task}: {score['value']:.4f} with the first {fraction:g} of each spectrum", flush=True)
    write_json(RANK_STUDIES / f"{task}.json", {"curve": curve})


if __name__ == "__main__":
    run_main(main)
