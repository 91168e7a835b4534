"""Study one entry with a part per task at the same bytes as others: merge all tasks at each budget, and measure it.

Every budget has a file with a fingerprint of what it was computed from, and the results of the examples beside it: a
kill loses one merge. An entry whose parts have a size of their own is merged once.
"""

from pathlib import Path
from typing import Any

from merganser import registry
from merganser.config.entries import FIXED, budgets_of
from merganser.config.params import Params
from merganser.evaluation.examples import write_results
from merganser.hashes import sha256_of_json
from merganser.outputs import remove_others, write_json
from merganser.overlays.budget import TooFewBytesError
from merganser.studies.merges import score_on
from merganser.tasks.kept import FINGERPRINT, read_kept
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BUDGET_STUDIES
from merganser.tasks.studied import Studied, open_studied, study_fingerprint


@stage("studies.budgets.methods")
def main(params: Params, key: str) -> None:
    """Measure one entry at every budget that is not there yet; remove what is of no budget."""
    entry, out = params.studies.budgets.methods[key], BUDGET_STUDIES / key
    check_found("methods", entry.method)
    check_found("families", params.base.family)
    budgets = budgets_of(params, registry.get(entry.method))
    out.mkdir(parents=True, exist_ok=True)
    remove_others(out, {*budgets, *(f"{name}.json" for name in budgets)})
    origin = study_fingerprint(params, entry, "merganser.tasks.study_budgets")
    origins = {name: sha256_of_json([origin, entry.values, budget]) for name, budget in budgets.items()}
    missing = [name for name in budgets if read_kept(out / f"{name}.json", origins[name]) is None]
    print(f"{key}: {len(budgets) - len(missing)} of {len(budgets)} budgets were there", flush=True)
    studied = open_studied(params, f"studies.budgets.methods.{key}", entry) if missing else None
    for name in missing:
        assert studied
        (out / f"{name}.json").unlink(missing_ok=True)  # it would stand beside results of other values
        found = measure_budget(studied, entry.values, budgets[name], out / name)
        write_json(out / f"{name}.json", {FINGERPRINT: origins[name], **found})
        shown = "does not fit: " + found["reason"] if "reason" in found else f"{found['amr']:.4f} of the bytes a task"
        print(f"{key}: {shown if name == FIXED else f'{name}: {shown}'}", flush=True)


def measure_budget(studied: Studied, values: dict[str, Any], budget: float | None, folder: Path) -> dict[str, Any]:
    """Merge within a budget, None for the bytes that the parts have by themselves; return what that took and scored.

    Writes the results of the examples into a folder. Where nothing fits, the reason is all that is returned.
    """
    fitting = studied.method.within
    try:
        fitted = {} if fitting is None or budget is None else fitting.values(studied.source, budget)
        with studied.merging({**values, **fitted}, folder.parent) as (found, rate):
            scores = {}
            for task, own, results in found:
                write_results(folder / f"{task}.safetensors", results)
                scores[task] = score_on(own, results)
            return {"values": fitted, "amr": rate(), "scores": scores}
    except TooFewBytesError as error:
        return {"reason": str(error)}


if __name__ == "__main__":
    run_main(main)
