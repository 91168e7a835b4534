"""Whether a premise entails a hypothesis, contradicts it or neither; every noun is taken to exist."""

from random import Random

from texts.lexicon import PLURALS, VERBS

ANSWERS = ["yes", "maybe", "no"]
CUE = "the answer is"
SECOND = "hypothesis"
SEEN = [1, 2]

QUANTIFIERS = ["all", "some", "no", "not all"]
VERDICTS = [  # of the premise's quantifier, down, about the hypothesis's, across
    [0, 0, 2, 2],
    [1, 0, 2, 1],
    [2, 2, 0, 0],
    [2, 1, 1, 0],
]
PLAIN = ["all {} {}", "some {} {}", "no {} {}", "not all {} {}"]
WORDED = ["every one of the {} {}", "several {} {}", "none of the {} {}", "hardly all {} {}"]
REWORDED = ["the {} all {}", "a few {} {}", "not one of the {} {}", "some {} do not {}"]
FALSE = [f"it is false that {opposite}" for opposite in ("not all {} {}", "no {} {}", "some {} {}", "all {} {}")]
CONSTRUCTIONS = [
    (PLAIN, PLAIN),
    (WORDED, PLAIN),
    (PLAIN, WORDED),
    (REWORDED, PLAIN),
    (PLAIN, REWORDED),
    (FALSE, PLAIN),
    (REWORDED, WORDED),
]


def write(rng: Random, construction: int) -> tuple[str, str, int]:
    """Write two quantified sentences about one noun and one verb."""
    answer = rng.randrange(3)
    pairs = [(p, h) for p in range(4) for h in range(4) if VERDICTS[p][h] == answer]
    premise, hypothesis = rng.choice(pairs)
    about = PLURALS[rng.randrange(12)], rng.choice(VERBS)
    of_premise, of_hypothesis = CONSTRUCTIONS[construction]
    return of_premise[premise].format(*about), of_hypothesis[hypothesis].format(*about), answer
