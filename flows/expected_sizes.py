"""What a comparison that never ran here will download, by what its hubs say, write and take, by docs/costs.md.

The headers of models that are not here are not known: the shares are those of a transformer whose blocks hold four
square matrices and two of four times that width, in the dtype that its configuration says; deltas are in float32.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dvcfleet.project import Expected
from flows.cost_model import FLOAT
from flows.expected_times import Sizes, picture_tokens, seconds
from flows.suite_check import repo_types
from merganser.checkpoints.adapters.files import adapter_names
from merganser.config.inputs import INPUTS
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.registry import get
from merganser.sources.counting import bytes_a_value, count_examples, picture_of
from merganser.sources.following import HubAwayError, look
from merganser.sources.pointers import RepoType, read_pointer, repositories
from merganser.sources.weights import weight_names

T = TypeVar("T")

ASKED_AT_ONCE = 8
FACTORS = 1.5  # bytes of all singular vectors, a byte of the deltas
BASES = 3.5  # bytes of a joint's bases, a byte of one task's deltas
PARTS = 1 / 8  # bytes of a task's own part, masks or low rank, a byte of its deltas
WHOLE = ("individual",)  # whose parts are the deltas


def expect(params: Params) -> Expected:
    """Ask the hubs how large sources are, and how many examples; what a hub does not answer is not expected."""
    types = repo_types(params)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as beside:
        seen = dict(zip(types, beside.map(_size, types, types.values()), strict=True))
    known = {source: size for source, size in seen.items() if size is not None}
    size = {str(source): float(bytes_) for source, bytes_ in known.items()}
    whole = _in_float32(
        {source: size[str(source)] for source, repo_type in types.items() if repo_type == "model" and source in known}
    )
    base = whole.get(params.base.source, max(whole.values(), default=0.0))
    times = seconds(params, _sizes(params, base)) if base else {}
    hubs = {source: size for source, size in known.items() if is_remote(source)}
    return Expected(hubs, dict(_written(params, size, whole)), times)


def is_remote(source: Path) -> bool:
    """Tell whether a source is a pointer to a hub."""
    return bool(repositories(read_pointer(source)))


def _size(source: Path, repo_type: RepoType) -> int | None:
    """Return the bytes of what is fetched of a source; None where that is not known."""
    try:
        pointer = read_pointer(source)
        if pointer is not None:
            return sum(look(source, each, repo_type).size for each in repositories(pointer).values()) or None
    except (InputError, HubAwayError):  # said when it is fetched
        return None
    if source.is_file():
        return source.stat().st_size
    inside = {path.name for path in source.iterdir()}
    names = adapter_names(inside) or weight_names(inside)
    files = [source / name for name in names] if repo_type == "model" else source.rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


def _in_float32(models: Mapping[Path, float]) -> dict[str, float]:
    """Return the bytes that models' values have in float32, by those that they have in their files."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as beside:
        widths = list(beside.map(lambda source: _known(lambda: bytes_a_value(source)) or FLOAT, models))
    return {str(source): size * FLOAT / width for (source, size), width in zip(models.items(), widths, strict=True)}


def _sizes(params: Params, base: float) -> Sizes:
    """Ask for the examples of tasks and the size of the base's pictures."""
    picture = _known(lambda: picture_of(Path(params.base.source)))
    measured = {task: (Path(params.tasks[task].data.source), params.split_of(task)) for task in params.measured}
    read, most = (measured, params.validation.examples) if params.validation else ({}, None)
    learned = {task: (source, params.validation_split_of(task)) for task, (source, _) in read.items()}
    with ThreadPoolExecutor(ASKED_AT_ONCE) as beside:
        wanted = [*measured.values(), *learned.values()]
        found = list(beside.map(lambda each: _known(lambda: count_examples(*each)), wanted))
    counted = dict(zip(wanted, found, strict=True))
    return Sizes(
        base,
        picture_tokens(*(picture or ())),
        {task: count for task, each in measured.items() if (count := counted[each]) is not None},
        {task: min(count, most or count) for task, each in learned.items() if (count := counted[each]) is not None},
    )


def _known(ask: Callable[[], T]) -> T | None:
    """Return what a source answers; None where it does not, which is said when it is fetched."""
    try:
        return ask()
    except Exception:  # hubs, `datasets` and Arrow raise dozens of kinds
        return None


def _written(params: Params, size: Mapping[str, float], in_float32: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Give the bytes that stages will write, as far as they follow from the models' sizes, as stored and in float32."""
    base = size.get(params.base.source)
    deltas = {name: in_float32[task.source] for name, task in params.tasks.items() if task.source in in_float32}
    yield from ((f"fetch@{name}", size[params.tasks[name].source]) for name in deltas)
    yield from (
        (f"fetch_data@{name}", size[task.data.source])
        for name, task in params.tasks.items()
        if task.data.source in size
    )
    share = FACTORS * params.decompose.rank_fraction * (1 if params.decompose.dtype == "float32" else 1 / 2)
    of_task = {"extract": 1.0, "decompose": share}  # bytes, a byte of the task's deltas
    for work in (work for each in INPUTS.values() for work in each.work(params)):
        if work.task in deltas and work.kind in of_task:
            yield work.stage, of_task[work.kind] * deltas[work.task]
        elif work.kind == "join" and deltas:
            yield work.stage, BASES * max(deltas.values())
        elif work.kind == "copy" and base is not None:
            yield work.stage, base
    if base is None:
        return
    yield "fetch_base", base
    for name, entry in params.methods.items():
        own = 1.0 if entry.method in WHOLE else PARTS if get(entry.method).overlay else 0.0
        yield f"merge@{name}", base + own * sum(deltas.values())
