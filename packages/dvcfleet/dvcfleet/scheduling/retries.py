"""Whether a stage is started again: after a failure as often as its `meta` says, and if its worker was lost."""

from collections import Counter
from collections.abc import Mapping

from dvcfleet.messages import Outcome
from dvcfleet.planning.resources import Resources

# How often a stage is started again because its worker was lost, in addition to the retries in `meta`.
LOSSES = 3
# Exit codes after which it is not: success, the user's mistake, and none, where the run itself stopped it.
FINAL = (0, 2, None)


class Retries:
    """Counts how often each stage failed, and how often it was lost; `resources`: those that each stage requests."""

    def __init__(self, resources: Mapping[str, Resources]) -> None:
        self._resources = resources
        self._counts: Counter[tuple[str, bool]] = Counter()

    def take(self, outcome: Outcome) -> bool:
        """Count an outcome; tell whether its stage is to be started again."""
        if not outcome.lost and outcome.exit_code in FINAL:
            self._counts[outcome.name, False] = 0
            return False
        self._counts[outcome.name, outcome.lost] += 1
        most = LOSSES if outcome.lost else self._resources[outcome.name].retries
        return self._counts[outcome.name, outcome.lost] <= most

    def times(self, outcome: Outcome) -> str:
        """Say how often what ended a stage has happened to it, if more than once."""
        count = self._counts[outcome.name, outcome.lost]
        return f", {count} times" if count > 1 else ""
