"""Choose the values of one entry of `searches`: the candidate whose merge scores best on the validation data.

The candidates of a grid are points. CMA-ES chooses each generation by the scores of earlier ones, so its candidates are
merged and measured here, and stored one by one: a kill loses one. The test split is never read.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from merganser.config.inputs.from_data import candidate_count, own_of
from merganser.config.params import Params
from merganser.config.points import SCORES, Point, Points
from merganser.config.sections import Evolution, Search
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.embeddings import READ, link_read
from merganser.inputs.learned import RESULT
from merganser.outputs import fresh_folder, read_json, remove_others, write_json
from merganser.studies.candidates import (
    Candidate,
    Values,
    best_candidate,
    best_of_each,
    format_values,
    relative_candidate,
)
from merganser.studies.evolution import evolved
from merganser.tasks.opening import FOUND
from merganser.tasks.point import Opened, candidates_at, measured_scores, open_point, scores_at
from merganser.tasks.stage import check_found, digest_of_code, run_main, stage
from merganser.tasks.stages import BASE, DATA, HEADS, POINTS, SEARCH_MEASURES, SEARCHES, VALIDATION

STATE = "state"
Measure = Callable[[Values], Candidate]


@stage("searches", timed=True)
def main(params: Params, name: str) -> None:
    """Write all candidates' scores in one search, and the values of the best one."""
    search, out, points = params.searches[name], SEARCHES / name, Points(params).search(name)
    tried = candidates_at(params, points)
    with measuring(params, points[0], out / STATE) as measure:
        if search.evolve is not None:
            tried = list(_shown(name, search, _evolved(params, search.evolve, tried[0], measure)))
        chosen = best_candidate(tried)
        if own := own_of(search):
            chosen = measure(best_of_each(tried, own))
            tried.append(chosen)
    result = _result(params, search, tried, chosen)
    with fresh_folder(out / RESULT) as folder:
        write_json(folder / FOUND, result)
    write_json(SEARCH_MEASURES / f"{name}.json", result)
    shutil.rmtree(out / READ, ignore_errors=True)
    link_read(DATA / search.of, sorted(params.tasks), out)
    print(f"{name}: chosen {format_values(chosen.values)}, {chosen.score:.4f}")


def _evolved(params: Params, settings: Evolution, first: Candidate, measure: Measure) -> Iterator[Candidate]:
    """Yield the candidates of CMA-ES, its starting point first."""

    def scored(values: Values) -> Candidate:
        return first if values["coefficients"] == first.values["coefficients"] else measure({**first.values, **values})

    return evolved(sorted(params.tasks), scored, seed=params.first_seed, **settings.model_dump())


def _shown(name: str, search: Search, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    for done, candidate in enumerate(candidates, 1):
        error = "" if candidate.stderr is None else f" ± {candidate.stderr:.4f}"
        values = format_values(candidate.values)
        print(f"{name}: {done} of {candidate_count(search)}: {candidate.score:.4f}{error} by {values}", flush=True)
        yield candidate


@contextmanager
def measuring(params: Params, point: Point, state: Path) -> Iterator[Measure]:
    """Return a function that measures a merge by other values than the point's own, or reads an earlier result.

    `state` stores the scores, in a folder named by all they depend on except the values.
    """
    individual = scores_at(Points(params).individual)
    state.mkdir(parents=True, exist_ok=True)
    with ExitStack() as context:

        @cache
        def opened() -> tuple[Path, Opened]:
            return _kept(params, point, state), context.enter_context(open_point(params, point))

        def measure(values: Values) -> Candidate:
            kept, point_here = opened()
            file = kept / f"{sha256_of_json(values)[:32]}.json"
            if not file.is_file():
                with TemporaryDirectory(dir=kept) as made:  # what a kill leaves of it, the next start removes
                    write_json(file, measured_scores(point_here.measure(values, Path(made))["scores"]))
            return relative_candidate(values, read_json(file), individual)

        yield measure


def _kept(params: Params, point: Point, state: Path) -> Path:
    """Return the folder of results by the same models, data, code and choices; remove all others."""
    check_found("methods", point.entry.method)
    check_found("families", params.base.family)
    files = [BASE, DATA / point.entry.reads, *(HEADS / f"{task}.safetensors" for task in point.tasks)]
    files += [VALIDATION / task for task in params.measured]
    code = digest_of_code(params, "merganser.tasks.search", f"merganser.methods.{point.entry.method}")
    origin = sha256_of_json([point.id, code, *map(sha256_of_tree, files)])[:32]
    remove_others(state, {origin})
    kept = state / origin
    kept.mkdir(exist_ok=True)
    remove_others(kept, {path.name for path in kept.glob("*.json")})
    return kept


def _result(params: Params, search: Search, tried: list[Candidate], chosen: Candidate) -> dict[str, Any]:
    """Return all candidates with their scores, the individual models' scores, and the chosen values."""
    individual = read_json(POINTS / Points(params).individual.folder / SCORES)["scores"]
    return {
        "method": search.method,
        "of": search.of,
        "grid": search.tried,
        "individual": measured_scores(individual),
        "forwards": (len(tried) + 1) * sum(score["count"] for score in individual.values()),
        "candidates": [asdict(one) for one in tried],
        "chosen": chosen.values,
    }


if __name__ == "__main__":
    run_main(main)
