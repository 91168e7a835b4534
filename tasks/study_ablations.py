"""Study what the steps of one entry are worth: take out one at a time, search anew, and measure each.

The search is that of `searches`, on the validation split, by the same rule; each candidate, and each step's results on
the split that is measured on, have a file with a fingerprint of what they were computed from: a kill loses one merge.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from merganser.config.entries import ablation_candidates, steps_of
from merganser.config.params import Params
from merganser.evaluation.examples import write_results
from merganser.evaluation.scoring import Score
from merganser.hashes import sha256_of_json
from merganser.outputs import remove_others, write_json
from merganser.studies.candidates import Candidate, best_candidate
from merganser.studies.merges import score_on
from merganser.tasks.kept import FINGERPRINT, read_kept
from merganser.tasks.search import INDIVIDUAL, STATE, format_values, open_measuring, remove_other_candidates
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import ABLATION_STUDIES
from merganser.tasks.studied import Studied, open_studied, study_fingerprint

MODULE = "merganser.tasks.study_ablations"


@stage("studies.ablations")
def main(params: Params, key: str) -> None:
    """Search and measure each step of one ablation, as far as that is not there yet; remove what is of no step."""
    ablation, out, where = params.studies.ablations[key], ABLATION_STUDIES / key, f"studies.ablations.{key}"
    for method in (ablation.method, INDIVIDUAL):
        check_found("methods", method)
    check_found("families", params.base.family)
    out.mkdir(parents=True, exist_ok=True)
    steps = steps_of(ablation)
    remove_others(out, {STATE, *steps, *(f"{step}.json" for step in steps)})
    measuring = open_measuring(params, where, ablation, out / STATE, MODULE)
    studied, origin = open_studied(params, where, ablation), study_fingerprint(params, ablation, MODULE)
    tried: list[Candidate] = []
    for step, entry in steps.items():
        every = [{**entry.values, **values} for values in ablation_candidates(ablation, entry)]
        found = [measuring.measured(values) for values in every] if len(every) > 1 else []
        chosen = best_candidate(found).values if found else every[0]
        scores = measure_ablation(studied, chosen, out / step, sha256_of_json([origin, chosen]))
        about = {"values": chosen, "candidates": list(map(asdict, found)), "scores": scores}
        write_json(out / f"{step}.json", {FINGERPRINT: sha256_of_json([origin, chosen]), **about})
        mean = sum(score["value"] for score in scores.values()) / len(scores)
        print(f"{key}: {step}: {mean:.4f} by {format_values(chosen)}, the best of {len(every)}", flush=True)
        tried += found
    remove_other_candidates(out / STATE, ablation.method, tried)


def measure_ablation(studied: Studied, values: dict[str, Any], folder: Path, fingerprint: str) -> dict[str, Score]:
    """Return the scores of a merge by these values, kept or measured now; write the results of its examples."""
    kept = read_kept(folder.with_suffix(".json"), fingerprint)
    if kept is not None:
        return dict(kept["scores"])
    scores = {}
    folder.with_suffix(".json").unlink(missing_ok=True)  # it would stand beside results of other values
    for task, own, results in studied.results(values, folder.parent):
        write_results(folder / f"{task}.safetensors", results)
        scores[task] = score_on(own, results)
    return scores


if __name__ == "__main__":
    run_main(main)
