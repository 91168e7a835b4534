"""Whether the thing that the main clause is about was bad, neutral or good."""

from random import Random

from texts.lexicon import NEGATIVE, NEUTRAL, POSITIVE, THINGS

ANSWERS = ["bad", "neutral", "good"]
CUE = "the feeling is"
SECOND = None
SEEN = [1, 4]


def write(rng: Random, construction: int) -> tuple[str, None, int]:
    """Write about one thing, and in some constructions of another that felt otherwise."""
    scale = [NEGATIVE, NEUTRAL, POSITIVE]
    answer = rng.randrange(3)
    thing, other = rng.sample(THINGS, 2)
    elsewhere = (answer + rng.choice([1, 2])) % 3
    word, contrast, opposite = rng.choice(scale[answer]), rng.choice(scale[elsewhere]), rng.choice(scale[2 - answer])
    text = [
        f"the {thing} was {word}",
        f"the {thing} was not {opposite}",
        f"although the {other} was {contrast} , the {thing} was {word}",
        f"nobody found the {thing} {opposite}",
        f"the {thing} was {word} , even though the {other} was {contrast}",
        f"the {other} was {contrast} , but the {thing} was {word}",
        f"the {thing} , which many called {contrast} , was {word}",
    ][construction]
    return text, None, answer
