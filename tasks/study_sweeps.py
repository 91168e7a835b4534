"""Study one entry over the values of one of its parameters: merge all tasks by each, and measure the merge.

Every value has a file with a fingerprint of what it was computed from, and is measured again only if that changed: a
kill loses one value. A sweep chooses nothing; a search does, on other data.
"""

from merganser.config.params import Params
from merganser.hashes import sha256_of_json
from merganser.outputs import remove_others, write_json
from merganser.studies.candidates import candidate_file_name, value_combinations
from merganser.studies.merges import score_on
from merganser.tasks.kept import FINGERPRINT, read_kept
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import SWEEP_STUDIES
from merganser.tasks.studied import open_studied, study_fingerprint


@stage("studies.sweeps")
def main(params: Params, key: str) -> None:
    """Measure every value of one sweep that is not there yet; remove what is not a value's."""
    sweep, out = params.studies.sweeps[key], SWEEP_STUDIES / key
    check_found("methods", sweep.method)
    check_found("families", params.base.family)
    every = value_combinations(sweep.over)
    out.mkdir(parents=True, exist_ok=True)
    remove_others(out, set(map(candidate_file_name, every)))
    common = study_fingerprint(params, sweep, "merganser.tasks.study_sweeps")
    origins = {candidate_file_name(one): sha256_of_json([common, {**sweep.values, **one}]) for one in every}
    missing = [
        one for one in every if read_kept(out / candidate_file_name(one), origins[candidate_file_name(one)]) is None
    ]
    print(f"{key}: {len(every) - len(missing)} of {len(every)} values were there", flush=True)
    studied = open_studied(params, f"studies.sweeps.{key}", sweep) if missing else None
    for done, one in enumerate(missing, 1):
        assert studied
        scores = {task: score_on(own, results) for task, own, results in studied.results({**sweep.values, **one}, out)}
        write_json(
            out / candidate_file_name(one),
            {FINGERPRINT: origins[candidate_file_name(one)], "values": one, "scores": scores},
        )
        mean = sum(score["value"] for score in scores.values()) / len(scores)
        shown = ", ".join(f"{name} {value}" for name, value in one.items())
        print(f"{key}: {done} of {len(missing)}: {mean:.4f} by {shown}", flush=True)


if __name__ == "__main__":
    run_main(main)
