"""Plain-text tables of what is in a repository: the plan, the suites."""

from collections.abc import Sequence

from dvcfleet.planning.orphans import orphan_lines
from dvcfleet.planning.plan import Plan
from flows.suites import Suite
from merganser.command_line.tables import print_table

MOST_TASKS = 8  # that are named


def print_plan(plan: Plan) -> None:
    """Print each stage's state and reasons, the outputs without a stage, and the counts."""
    rows = ((node.name, node.state.value, "; ".join(node.reasons)) for node in plan.nodes.values())
    print_table(("stage", "state", "why"), rows)
    for line in orphan_lines(plan.orphans):
        print(line)
    print(", ".join(f"{count} {state}" for state, count in plan.as_json()["counts"].items() if count))


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
