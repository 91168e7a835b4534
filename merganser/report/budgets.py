"""What a task may keep beside the shared model: the sizes among which the report names a best entry."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """The entries that keep at most this much for each task, in shares of the merged parameters' bytes."""

    key: str
    title: str
    short: str
    most: float | None  # None: any size; 0: a task keeps nothing of its own

    def holds(self, one_model: bool, amr: float) -> bool:
        """Tell whether an entry fits, by its kind and its additional memory rate."""
        return one_model or self.most is None or amr <= self.most > 0


BUDGETS = (
    Budget("one_model", "one model for all tasks", "one model", most=0),
    Budget("1_percent", "at most 1 % more per task", "≤ 1 %", most=0.01),
    Budget("5_percent", "at most 5 % more per task", "≤ 5 %", most=0.05),
    Budget("any_size", "any size", "any size", most=None),
)
