"""Search a coefficient per task by CMA-ES (Hansen and Ostermeier, 2001), as PCB and LoraHub do."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from cmaes import CMA

from merganser.studies.candidates import Candidate, Values


def evolved(
    tasks: Sequence[str],
    measure: Callable[[Values], Candidate],
    *,
    generations: int,
    population: int,
    sigma: float,
    seed: int,
) -> Iterator[Candidate]:
    """Yield the candidate of coefficients 1, then each of each generation, all of which follow from the scores before.

    The same scores make it ask for the same coefficients: what was measured before need not be measured again.
    """
    yield measure(_coefficients(tasks, np.ones(len(tasks)).tolist()))
    optimiser = CMA(mean=np.ones(len(tasks)), sigma=sigma, seed=seed, population_size=population)
    for _ in range(generations):
        scored = []
        for _ in range(population):
            asked = optimiser.ask()
            found = measure(_coefficients(tasks, asked.tolist()))
            scored.append((asked, -found.score))
            yield found
        optimiser.tell(scored)


def _coefficients(tasks: Sequence[str], values: Sequence[float]) -> Values:
    return {"coefficients": dict(zip(tasks, values, strict=True))}
