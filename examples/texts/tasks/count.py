"""How many of the goods the first person has in the end: a regression for the encoder, a word for the causal model."""

from random import Random

from texts.lexicon import GOODS, NAMES, NUMBERS

ANSWERS = NUMBERS  # zero is not an answer, but makes the number of an answer the number itself
CUE = "the number is"
SECOND = None
SEEN = [1, 2, 3]


def write(rng: Random, construction: int) -> tuple[str, None, int]:
    """Write what people have, get and lose."""
    (a, b), (f, g) = rng.sample(NAMES, 2), rng.sample(GOODS, 2)
    x, z = rng.randrange(1, 7), rng.randrange(1, 7)
    text, number = [
        (f"{a} has {NUMBERS[x + z]} {f}", x + z),
        (f"{a} has {NUMBERS[x]} {f} and {NUMBERS[z]} {g}", x + z),
        (f"{a} had {NUMBERS[x + z]} {f} but lost {NUMBERS[z]}", x),
        (f"{a} has {NUMBERS[x]} {f} and found {NUMBERS[z]} more", x + z),
        (f"{a} has {NUMBERS[x]} {f} while {b} has {NUMBERS[2 * z]}", x),
        (f"of {NUMBERS[x + z]} {f} , {a} sold {NUMBERS[z]}", x),
        (f"{b} has {NUMBERS[2 * z]} {g} , but {a} has {NUMBERS[x]}", x),
    ][construction]
    return text, None, number
