"""Plain-text table of the suites of a repository."""

from collections.abc import Sequence

from flows.suites import Suite
from merganser.command_line.tables import print_table

MOST_TASKS = 8  # that are named


def print_suites(suites: Sequence[Suite]) -> None:
    """Print one line a suite; of one whose params.yaml is refused, why."""
    rows = [
        (
            "*" if suite.in_use else "",
            suite.name,
            suite.family,
            _named(suite.tasks),
            str(len(suite.entries)),
            suite.gpu,
            suite.mistake.splitlines()[0] if suite.mistake else suite.download,
        )
        for suite in suites
    ]
    print_table(("", "suite", "family", "tasks", "entries", "GPU", "download"), rows)


def _named(tasks: Sequence[str]) -> str:
    return " ".join(tasks) if len(tasks) <= MOST_TASKS else f"{len(tasks)}: {' '.join(tasks[:3])} ..."
