"""A plan in a few lines: the stages by kind, why they run, and how long they took before."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.heartbeat import in_words
from dvcfleet.planning.plan import PlannedStage, State


def overview(work: Iterable[PlannedStage], seconds: Mapping[str, float]) -> Iterator[str]:
    """List the stages that a run would run, kind by kind; names of one kind and reason share a line.

    `seconds`: how long a stage took before, where it ran.
    """
    stages = list(work)
    for kind in dict.fromkeys(kind_of(stage.name) for stage in stages):
        of_kind = [stage for stage in stages if kind_of(stage.name) == kind]
        if len(of_kind) == 1:
            (stage,) = of_kind
            yield f"{stage.name}: {stage.state} ({'; '.join(stage.reasons)})"
            continue
        counts = Counter(stage.state for stage in of_kind)
        took = sum(seconds.get(stage.name, 0.0) for stage in of_kind)
        spent = f"; took {in_words(took)} before" if took else ""
        yield f"{kind}: {', '.join(f'{count} {state}' for state, count in counts.items())}{spent}"
        for (state, why), names in _by_reason(of_kind).items():
            yield f"    {state}{f' ({why})' if why else ''}: {', '.join(names)}"


def _by_reason(stages: Iterable[PlannedStage]) -> dict[tuple[State, str], list[str]]:
    """Group stages of a kind by state and reasons; which others a stage waits for is left out."""
    found: dict[tuple[State, str], list[str]] = {}
    for stage in stages:
        why = "" if stage.state is State.WAITING else "; ".join(stage.reasons)
        found.setdefault((stage.state, why), []).append(stage.name.partition("@")[2] or stage.name)
    return found
