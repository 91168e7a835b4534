"""Study one task's rank: the score of its own model, every matrix of its delta cut to a share of the rank."""

from pathlib import Path

from merganser.checkpoints.reading import open_for_merging
from merganser.config.loading import load_params
from merganser.config.params import Params, RankStudy, declared
from merganser.evaluation.evaluator import evaluator_for
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import score_of
from merganser.inputs.deltas import open_deltas
from merganser.inputs.factors import open_factors
from merganser.inputs.heads import read_head
from merganser.models import open_network
from merganser.models.device import usable
from merganser.studies.rank import fractions_of, truncated_model
from tasks.paths import BASE, DELTAS, FACTORS, HEADS, PREPARED, RANK_STUDIES
from tasks.stage import check_family, check_kind, run, two_names, write_json


def study_rank(params: Params, task: str) -> None:
    """Measure one task's model at every share of params.yaml and whole; write the curve as JSON."""
    check_family(params.base.family)
    prepared, head = Prepared(PREPARED / task), read_head(HEADS / f"{task}.safetensors")
    base, evaluator = open_for_merging(BASE), evaluator_for(prepared)
    evaluator.check_head(head.classes, prepared.classes, task)
    check_kind(evaluator.name)
    device, precision = usable(params.evaluation.device, "evaluation.device"), params.evaluation.precision
    outputs = evaluator.outputs(prepared.classes)
    network = open_network(params.base.family, BASE, outputs=outputs, device=device, precision=precision)
    prepared = prepared.on(network.device)
    deltas, factors = open_deltas(DELTAS, [task]), open_factors(FACTORS, [task])
    curve = []
    for fraction in fractions_of(params.studies.rank.fractions):
        network.load(head.put_on(truncated_model(base, deltas, factors, fraction)))
        score = score_of(evaluator.metric, evaluator.results(network, prepared, params.evaluation.batch_size))
        curve.append({"fraction": fraction, **score, "device": device})
        print(f"{task}: {score['value']:.4f} with the first {fraction:g} of each spectrum", flush=True)
    write_json(RANK_STUDIES / f"{task}.json", {"curve": curve})


def main(argv: list[str]) -> None:
    """Study the task named on the command line, and which study of it: there is one."""
    params = load_params(Path("params.yaml"))
    task, _ = two_names(argv, "study_rank", params.tasks, RankStudy.model_fields)
    declared(params.tasks, task, "tasks")
    study_rank(params, task)


if __name__ == "__main__":
    run(main)
