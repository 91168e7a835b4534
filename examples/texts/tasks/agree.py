"""Which form of the verb fills the blank: the number of its subject."""

from random import Random

from texts.lexicon import ADJECTIVES, NOUNS, PAST, PLURALS, PREDICATES, PREPOSITIONS

ANSWERS = ["is", "are"]
CUE = "the verb is"
SECOND = None
SEEN = [1, 2, 3]
COORDINATION = 5


def write(rng: Random, construction: int) -> tuple[str, None, int]:
    """Write a sentence whose subject is often followed by a noun of the other number."""
    coordinated = construction == COORDINATION
    answer = 1 if coordinated else rng.randrange(2)  # a coordination is plural
    if coordinated and rng.random() < 0.4:  # keeps the answers near balance
        answer, construction = 0, 1
    i, j, k = rng.sample(range(12), 3)
    attracted = rng.random() < (0.5 if coordinated else 0.2 + 0.6 * (1 - answer))
    subject, other = _noun(i, answer == 1), _noun(j, attracted)
    adjective, preposition = rng.choice(ADJECTIVES), rng.choice(PREPOSITIONS)
    past, predicate = rng.choice(PAST), rng.choice(PREDICATES)
    text = [
        f"the {adjective} {subject} _ {predicate}",
        f"the {subject} {preposition} the {other} _ {predicate}",
        f"the {subject} that the {adjective} {other} {past} _ {predicate}",
        f"{preposition} the {adjective} {other} the {subject} _ {predicate}",
        f"the {subject} who {past} the {other} _ {predicate}",
        f"the {NOUNS[i]} and the {other} _ {predicate}",
        f"the {other} {past} by the {_noun(k, answer == 0)} said that the {subject} _ {predicate}",
    ][construction]
    return text, None, answer


def _noun(number: int, plural: bool) -> str:
    return (PLURALS if plural else NOUNS)[number]
