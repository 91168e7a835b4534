"""Merge by the best candidate of an ablation's step, chosen as in a search on the validation split, and measure it."""

from dataclasses import asdict

from merganser.studies.candidates import best_candidate, format_values
from merganser.tasks.point import candidates_at, measure_point, point_of
from merganser.tasks.stage import run_main
from merganser.tasks.stages import POINTS


def main(argv: list[str]) -> None:
    """Choose the values of the step with the given id, and measure it."""
    params, step = point_of(argv)
    tried = candidates_at(params, step.tried)
    chosen = best_candidate(tried).values
    measure_point(params, step, chosen, POINTS / step.folder, candidates=list(map(asdict, tried)))
    print(f"{step.where}: {format_values(chosen)}, the best of {len(tried)}")


if __name__ == "__main__":
    run_main(main)
