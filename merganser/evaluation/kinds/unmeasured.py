"""No data: the task's model is merged with the others and not measured; none of a kind's functions is called."""

from merganser.evaluation import KindSettings

METRICS = ("none",)
NEEDS = ()
TOKENS = 0


class Settings(KindSettings):
    """No keys."""
