"""One coefficient per task, by the task's name."""

from collections.abc import Mapping, Sequence

from merganser.errors import InputError


def task_coefficients(tasks: Sequence[str], coefficients: Mapping[str, float] | None) -> list[float]:
    """List the tasks' coefficients in their order, 1 for a task that is not named.

    Raises InputError naming every task that does not exist.
    """
    named = coefficients or {}
    unknown = [name for name in named if name not in tasks]
    if unknown:
        raise InputError(f"coefficients: no such task: {', '.join(unknown)}; the tasks are {', '.join(tasks)}")
    return [named.get(task, 1.0) for task in tasks]
