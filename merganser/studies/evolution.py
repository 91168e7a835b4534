"""Search one coefficient per task by CMA-ES (Hansen and Ostermeier, 2001), as PCB and LoraHub do."""

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
    """Yield the candidate with coefficients 1, then those of each generation, which depend on earlier scores.

    The same scores lead to the same candidates, so stored scores need not be measured again.
    """
    yield measure({"coefficients": dict.fromkeys(tasks, 1.0)})
    optimiser = CMA(mean=np.ones(len(tasks)), sigma=sigma, seed=seed, population_size=population)
    for _ in range(generations):
        scored = []
        for _ in range(population):
            asked = optimiser.ask()
            candidate = measure({"coefficients": dict(zip(tasks, asked.tolist(), strict=True))})
            scored.append((asked, -candidate.score))
            yield candidate
        optimiser.tell(scored)
