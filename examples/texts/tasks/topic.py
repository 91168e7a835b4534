"""Which of eight subjects the text is about; another one is mentioned."""

from random import Random

from texts.lexicon import SUBJECTS

ANSWERS = list(SUBJECTS)
CUE = "the subject is"
SECOND = None
SEEN = [1, 2, 3]


def write(rng: Random, construction: int) -> tuple[str, None, int]:
    """Write about one subject and in passing about another."""
    answer = rng.randrange(8)
    a, b = rng.sample(SUBJECTS[ANSWERS[answer]], 2)
    c, d = rng.sample(SUBJECTS[ANSWERS[(answer + rng.randrange(1, 8)) % 8]], 2)
    text = [
        f"we read about the {a} and the {b}",
        f"instead of the {c} and the {d} , we discussed the {a}",
        f"we discussed the {a} rather than the {c} or the {d}",
        f"the {c} and the {d} were mentioned , but the {a} was the main subject",
        f"the text about the {a} ignores the {c} and the {d}",
        f"nothing about the {c} or the {d} , only about the {a}",
        f"the {a} , not the {c} and the {d} , was in the news",
    ][construction]
    return text, None, answer
