"""A plan in a few lines: the stages by kind, why they run, and how long they took before."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.heartbeat import in_words
from dvcfleet.planning.plan import Node, State


def overview(work: Iterable[Node], seconds: Mapping[str, float]) -> Iterator[str]:
    """List the stages that a run would run, kind by kind; names of one kind and reason share a line.

    `seconds`: how long a stage took before, where it ran.
    """
    nodes = list(work)
    for kind in dict.fromkeys(kind_of(node.name) for node in nodes):
        of_kind = [node for node in nodes if kind_of(node.name) == kind]
        if len(of_kind) == 1:
            (node,) = of_kind
            yield f"{node.name}: {node.state} ({'; '.join(node.reasons)})"
            continue
        counts = Counter(node.state for node in of_kind)
        took = sum(seconds.get(node.name, 0.0) for node in of_kind)
        spent = f"; took {in_words(took)} before" if took else ""
        yield f"{kind}: {', '.join(f'{count} {state}' for state, count in counts.items())}{spent}"
        for (state, why), names in _by_reason(of_kind).items():
            yield f"    {state}{f' ({why})' if why else ''}: {', '.join(names)}"


def _by_reason(nodes: Iterable[Node]) -> dict[tuple[State, str], list[str]]:
    """Group stages of a kind by state and reasons; which others a stage waits for is left out."""
    found: dict[tuple[State, str], list[str]] = {}
    for node in nodes:
        why = "" if node.state is State.WAITING else "; ".join(node.reasons)
        found.setdefault((node.state, why), []).append(node.name.partition("@")[2] or node.name)
    return found
