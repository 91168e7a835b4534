"""No data: the task's model is merged but not measured. None of the kind's functions is called."""

from merganser.evaluation import KindSettings

METRICS = ("none",)
NEEDS = ()
TOKENS = 0
check_data = columns = classes = prepare = results = None


class Settings(KindSettings):
    """No keys."""
