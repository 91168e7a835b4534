"""What a comparison that never ran here will download, by what its hubs say, and write, by the sizes in docs/costs.md.

The headers of models that are not here are not known: the shares are those of a transformer in float32 whose blocks
hold four square matrices and two of four times that width.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dvcfleet.project import Expected
from flows.suite_check import Kind, kinds_of
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.registry import get
from merganser.sources.following import HubAwayError, look
from merganser.sources.pointers import HubPointer, read_pointer

ASKED_AT_ONCE = 8
FACTORS = 1.5  # bytes of all singular vectors, a byte of the deltas
BASES = 3.5  # bytes of a joint's bases, a byte of one task's deltas
PARTS = 1 / 8  # bytes of a task's own part, masks or low rank, a byte of its deltas
WHOLE = ("individual",)  # whose parts are the deltas


def expect(params: Params, sources: Iterable[Path]) -> Expected:
    """Ask the hubs how large sources are; nothing is expected of those whose hub does not answer."""
    kinds = kinds_of(params)
    asked = [source for source in sources if source in kinds]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as beside:
        seen = dict(zip(asked, beside.map(lambda source: _size(source, kinds[source]), asked), strict=True))
    known = {source: size for source, size in seen.items() if size is not None}
    return Expected(known, dict(_written(params, {str(source): float(size) for source, size in known.items()})))


def _size(source: Path, kind: Kind) -> int | None:
    try:
        pointer = read_pointer(source)
        return look(source, pointer, kind).size if isinstance(pointer, HubPointer) else None
    except (InputError, HubAwayError):  # said when it is fetched
        return None


def _written(params: Params, size: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Give the bytes that stages will write, as far as they follow from the models' sizes."""
    base = size.get(params.base.source)
    deltas = {name: size[task.source] for name, task in params.tasks.items() if task.source in size}
    yield from ((f"fetch@{name}", each) for name, each in deltas.items())
    yield from ((f"extract@{name}", each) for name, each in deltas.items())
    share = min(FACTORS * params.decompose.rank_fraction, FACTORS)
    yield from ((f"decompose@{name}", share * each) for name, each in deltas.items())
    yield from (
        (f"fetch_data@{name}", size[task.data.source])
        for name, task in params.tasks.items()
        if task.data.source in size
    )
    if deltas:
        yield from ((f"join@{name}", BASES * max(deltas.values())) for name in params.joints)
    yield from (
        (f"extract_difference@{name}-{task}", each) for name in params.differences for task, each in deltas.items()
    )
    if base is None:
        return
    yield "fetch_base", base
    yield from ((f"difference@{name}", base) for name in params.differences)
    for name, entry in params.methods.items():
        own = 1.0 if entry.method in WHOLE else PARTS if get(entry.method).overlay else 0.0
        yield f"merge@{name}", base + own * sum(deltas.values())
