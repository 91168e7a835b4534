"""Which of eight people did it, or had it done to them: a sentence and a question."""

from random import Random

from texts.lexicon import NAMES, PAST

ANSWERS = NAMES
CUE = "answer :"
SECOND = "question"
SEEN = [1, 2]


def write(rng: Random, construction: int) -> tuple[str, str, int]:
    """Write who did something to whom, and ask for one of the two."""
    a, b = rng.sample(NAMES, 2)
    verb = rng.choice(PAST)
    text = [
        f"{a} {verb} {b}",
        f"{b} was {verb} by {a}",
        f"it was {a} who {verb} {b}",
        f"it was {b} that {a} {verb}",
        f"the one who {verb} {b} was {a}",
        f"{b} , whom {a} {verb} , went home",
        f"the one that {a} {verb} was {b}",
    ][construction]
    if rng.random() < 0.5:
        return text, f"who {verb} somebody ?", NAMES.index(a)
    return text, f"who was {verb} ?", NAMES.index(b)
