"""The expected downloads, sizes and times of stages that never ran here, from hubs and the table of stages.

One rule gives the times: a start-up time, plus the stage's bytes and its tokens through a network of the base's size,
at this machine's speeds. packages/dvcfleet/docs/engine.md says how accurate it was.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.project import Expected
from merganser.checkpoints.adapters.files import adapter_names
from merganser.checkpoints.weight_files import weights_in
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.sections import OWN_MODELS
from merganser.errors import InputError
from merganser.flows.steps.devices import devices_of
from merganser.flows.suites.ready import sources_of
from merganser.machine import bytes_a_second, flop_a_second
from merganser.sources.counting import bytes_a_value, count_examples, picture_of
from merganser.sources.following import look
from merganser.sources.pointers import RepoType, local_path, read_pointer, repositories
from merganser.tasks.stages import FLOAT, STAGES, ComparisonSizes

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

ASKED_AT_ONCE = 8
PICTURE, PATCH = 224, 16  # pixels a side, where the base's configuration does not say them
START_S = 0.7  # of a stage


def is_on_a_hub(path: Path) -> bool:
    """Tell whether a source is a file that points to a model or data on a hub."""
    try:
        return local_path(path) is None
    except InputError:  # said when params.yaml is checked
        return False


def expected_of(path: Path, needs: Mapping[str, Collection[str]]) -> Expected:
    """Return the result of `expect` for a params.yaml in the current folder; empty if it has mistakes."""
    root = Path.cwd()
    try:
        work = expect(load_params(path), needs)
    except (InputError, ValueError):  # said when params.yaml is checked
        return Expected()
    return replace(work, downloads={root / source: size for source, size in work.downloads.items()})


def expect(params: Params, needs: Mapping[str, Collection[str]]) -> Expected:
    """Return the expected sizes and times of stages that have not run; `needs`: the inputs of each stage, as stages.

    Asks the hubs for the sizes of sources and the numbers of examples; without an answer nothing is expected.
    """
    types = sources_of(params)
    sizes = _asked(lambda source: _size(source, types[source]), types)
    if not sizes:  # no hub answers: nothing more is asked
        return Expected()
    models = [source for source in sizes if types[source] == "model"]
    known, devices = _known(params, sizes, models), devices_of(params.model_dump())
    written, seconds = {}, {}
    for name in {*needs, *(each for read in needs.values() for each in read)}:
        with suppress(LookupError):
            written[name] = STAGES[kind_of(name)].size(known, instance_of(name))
    for name, read in needs.items():
        moved = sum(written.get(each, 0.0) for each in (name, *read))
        with suppress(LookupError):
            tokens = STAGES[kind_of(name)].tokens(known, instance_of(name))
            computed = 2 * known.values * tokens / flop_a_second(devices.of(name)) if tokens else 0.0
            seconds[name] = START_S + moved / bytes_a_second() + computed
    hubs = {source: size for source, size in sizes.items() if size and repositories(read_pointer(source))}
    return Expected(hubs, {name: size for name, size in written.items() if name in needs}, seconds)


def instance_of(name: str) -> str:
    """Return the part of a stage's name after the @."""
    return name.partition("@")[2]


def _size(source: Path, repo_type: RepoType) -> int:
    """Return the bytes to download for a source."""
    place = local_path(source)
    if place is None:
        return sum(look(source, each, repo_type).size for each in repositories(read_pointer(source)).values())
    if place.is_file():
        return place.stat().st_size
    inside = {path.name for path in place.iterdir()}
    model = repo_type == "model"
    files = [place / name for name in adapter_names(inside) or weights_in(place, inside)] if model else place.rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


def _known(params: Params, sizes: Mapping[Path, int], models: Collection[Path]) -> ComparisonSizes:
    """Look up the models' sizes in float32, the picture size of the base, and the tasks' numbers of examples."""
    widths = dict.fromkeys(models, FLOAT) | _asked(bytes_a_value, models)
    pictures = _asked(picture_of, [params.base_source or OWN_MODELS]).values()
    size, patch = next(filter(None, pictures), (PICTURE, PATCH))
    data = {task: Path(params.tasks[task].data.source) for task in params.measured}
    measured = {task: (source, params.split_of(task)) for task, source in data.items()}
    learned = {task: (source, params.validation_split_of(task)) for task, source in data.items() if params.validation}
    counts = _asked(lambda split: count_examples(*split), {*measured.values(), *learned.values()})
    most = params.validation.examples if params.validation else None
    some = params.evaluation.examples
    return ComparisonSizes(
        params,
        {str(source): size for source, size in sizes.items() if size},
        {str(source): sizes[source] * FLOAT / width for source, width in widths.items() if sizes[source]},
        (size // patch) ** 2 + 1,  # its patches, and one for the whole
        {task: min(counts[split], some or counts[split]) for task, split in measured.items() if split in counts},
        {task: min(counts[split], most or counts[split]) for task, split in learned.items() if split in counts},
    )


def _asked(ask: Callable[[Asked], Answer], things: Collection[Asked]) -> dict[Asked, Answer]:
    """Ask about each thing, several at once; skip those without an answer, which fetching reports later."""

    def answer(thing: Asked) -> list[Answer]:
        try:
            return [ask(thing)]
        except Exception:  # hubs, `datasets` and Arrow raise dozens of kinds
            return []

    with ThreadPoolExecutor(ASKED_AT_ONCE) as beside:
        return {thing: each for thing, told in zip(things, beside.map(answer, things), strict=True) for each in told}
