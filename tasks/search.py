"""Search one entry of `searches`: merge by each candidate, measure it on the validation data, choose the best.

Every candidate has a file with a fingerprint of what it was computed from, and is measured again only if that changed:
a kill loses one candidate. The split that is measured on at the end is never read.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from merganser import registry
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.vocabulary.writing import like_base
from merganser.config.inputs.from_data import candidate_count, own_of, search_candidates
from merganser.config.params import Params
from merganser.config.sections import Entry, Search
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.embeddings import READ, link_read
from merganser.inputs.layers import LayerSource
from merganser.inputs.learned import RESULT
from merganser.inputs.model_deltas import open_models
from merganser.measures.scores import error_of_mean, normalised_score
from merganser.merging.method import Method
from merganser.outputs import fresh_folder, remove_others, write_json
from merganser.studies.candidates import Candidate, MeasuredScore, best_candidate, best_of_each, candidate_file_name
from merganser.studies.evolution import evolved
from merganser.studies.merges import ScoringSetup, score_merge
from merganser.tasks.kept import FINGERPRINT, digest_of_code, read_kept
from merganser.tasks.opening import FOUND, open_source, start_of
from merganser.tasks.scoring import open_tasks
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, CHECKPOINTS, DATA, HEADS, SEARCH_MEASURES, SEARCHES, VALIDATION

INDIVIDUAL = "individual"
STATE, SCORES = "state", "scores"


@dataclass(frozen=True)
class Measuring:
    """What the values of candidates are measured with, opened once."""

    where: str  # in params.yaml
    method: Method
    source: LayerSource
    setup: ScoringSetup
    state: Path
    origin: str  # a digest of all that scores follow from, but the values
    individual: Mapping[str, MeasuredScore]  # on the same data

    def measured(self, values: Mapping[str, Any]) -> Candidate:
        """Merge and measure by these values, or read what was measured before."""
        found = by_task(self, self.method, values, self.source)
        scores, own = ({task: one["value"] for task, one in each.items()} for each in (found, self.individual))
        errors, usable = {task: one["stderr"] for task, one in found.items()}, all(value > 0 for value in own.values())
        score = normalised_score(scores, own) if usable else sum(scores.values()) / len(scores)
        return Candidate(dict(values), score, error_of_mean(errors, own if usable else None), found)


def by_task(
    measuring: Measuring, method: Method, values: Mapping[str, Any], source: LayerSource
) -> dict[str, MeasuredScore]:
    """Return the score on each task of a merge, kept from an earlier start or measured now."""
    file = measuring.state / candidate_file_name({"method": method.name, **values})
    kept = read_kept(file, measuring.origin)
    if kept is None:
        # in the kept folder: what a kill leaves there, the next start removes
        with TemporaryDirectory(dir=measuring.state) as folder:
            filled = method.validate(measuring.where, dict(values))
            scores = score_merge(method, filled, source, measuring.setup, Path(folder))
        measured = {task: MeasuredScore(value=one["value"], stderr=one["stderr"]) for task, one in scores.items()}
        kept = {FINGERPRINT: measuring.origin, SCORES: measured}
        write_json(file, kept)
    return dict(kept[SCORES])


@stage("searches", timed=True)
def main(params: Params, name: str) -> None:
    """Measure every candidate of one search that is not there yet; write all of them, and what was chosen."""
    search, out = params.searches[name], SEARCHES / name
    for method in (search.method, INDIVIDUAL):
        check_found("methods", method)
    check_found("families", params.base.family)
    measuring = open_measuring(params, f"searches.{name}", search.entry({}), out / STATE, "merganser.tasks.search")
    candidates = []
    for done, found in enumerate(tried(params, search, measuring), 1):
        candidates.append(found)
        error = "" if found.stderr is None else f" ± {found.stderr:.4f}"
        print(
            f"{name}: {done} of {candidate_count(search)}: {found.score:.4f}{error} by {format_values(found.values)}",
            flush=True,
        )
    chosen = best_candidate(candidates)
    if own := own_of(search):
        chosen = measuring.measured(best_of_each(candidates, own))
        candidates.append(chosen)
    remove_other_candidates(out / STATE, search.method, candidates)
    result = result_of(search, measuring, candidates, chosen)
    with fresh_folder(out / RESULT) as folder:
        write_json(folder / FOUND, result)
    write_json(SEARCH_MEASURES / f"{name}.json", result)
    shutil.rmtree(out / READ, ignore_errors=True)
    link_read(DATA / search.of, sorted(params.tasks), out)
    print(f"{name}: chosen {format_values(chosen.values)}, {chosen.score:.4f}")


def tried(params: Params, search: Search, measuring: Measuring) -> Iterator[Candidate]:
    """Measure candidate by candidate."""

    def measure(values: Mapping[str, Any]) -> Candidate:
        return measuring.measured({**search.values, **values})

    if search.evolve is None:
        return map(measure, search_candidates(search))
    return evolved(sorted(params.tasks), measure, seed=params.first_seed, **search.evolve.model_dump())


def remove_other_candidates(state: Path, method: str, candidates: Iterable[Candidate]) -> None:
    """Remove what lies there of candidates that are no longer tried."""
    files = {candidate_file_name({"method": method, **one.values}) for one in candidates}
    remove_others(state, files | {candidate_file_name({"method": INDIVIDUAL})})


def open_measuring(params: Params, where: str, entry: Entry, state: Path, module: str) -> Measuring:
    """Open all that an entry's candidates are measured with, the individual models' own scores among it.

    `where`: in params.yaml. `state`: the folder of what is kept, made here. `module`: the stage's.
    """
    tasks, inner = sorted(params.tasks), params.inner(entry)
    base = start_of(entry, inner.reads) / "base" if inner.difference else BASE
    state.mkdir(parents=True, exist_ok=True)
    remove_others(state, {path.name for path in state.glob("*.json")})
    setup = open_tasks(params, VALIDATION, base)
    source = open_source(entry, inner.reads, tasks, params.first_seed)
    opening = Measuring(
        where, registry.get(entry.method), source, setup, state, search_fingerprint(params, entry, module), {}
    )
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    on_base = replace(setup, base=open_for_merging(BASE)) if inner.difference else setup
    with TemporaryDirectory(prefix="merganser-") as made:
        lie = {task: like_base(BASE, task, CHECKPOINTS / task, Path(made)) for task in tasks}
        models = open_models(open_for_merging(BASE), {task: open_model(path) for task, path in lie.items()}, rules)
        own = by_task(replace(opening, setup=on_base), registry.get(INDIVIDUAL), {}, models)
    return replace(opening, individual=own)


def search_fingerprint(params: Params, entry: Entry, module: str) -> str:
    """Return a digest of all that a candidate's score follows from, but its values."""
    tasks = sorted(params.tasks)
    files = [BASE, DATA / entry.reads, *(folder / task for folder in (CHECKPOINTS, VALIDATION) for task in tasks)]
    methods = (f"merganser.methods.{name}" for name in (entry.method, INDIVIDUAL))
    code = digest_of_code(params, module, *methods)
    evaluation = params.evaluation.model_dump(exclude={"split"})
    files += [HEADS / f"{task}.safetensors" for task in tasks]
    return sha256_of_json([entry.reads, params.first_seed, tasks, evaluation, code, *map(sha256_of_tree, files)])


def result_of(search: Search, measuring: Measuring, candidates: list[Candidate], chosen: Candidate) -> dict[str, Any]:
    """Return all candidates with their scores, the individual models', and the values that were chosen."""
    examples = sum(len(one.prepared) for one in measuring.setup.tasks.values())
    return {
        "method": search.method,
        "of": search.of,
        "grid": search.tried,
        "individual": dict(measuring.individual),
        "forwards": (len(candidates) + 1) * examples,
        "candidates": [asdict(one) for one in candidates],
        "chosen": chosen.values,
    }


def format_values(values: Mapping[str, Any]) -> str:
    """Show a candidate's values in a line."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
    )


if __name__ == "__main__":
    run_main(main)
