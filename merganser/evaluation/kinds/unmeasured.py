"""No data: the task's model is merged but not measured. None of the kind's functions is called."""

from merganser.evaluation import KindSettings

METRICS = ("none",)
NEEDS = ()
TOKENS = 0


class Settings(KindSettings):
    """No keys."""
