"""Compare the declared models before any work, from headers alone."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.configurations import check_configuration
from merganser.checkpoints.kinds import ParameterRules, is_head, is_measured, is_merged
from merganser.checkpoints.mean import mean_model
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.checkpoints.views import unstacked
from merganser.checkpoints.vocabulary.plan import in_one_vocabulary
from merganser.config.columns import IMAGE, LABEL, TEXT, column_advice
from merganser.config.entries import studied_entries
from merganser.config.inputs import INPUTS
from merganser.config.inputs.base import known_method
from merganser.config.mistakes import Mistake, MistakesError, mistakes_at
from merganser.config.params import Params
from merganser.config.published import read_published
from merganser.config.sections import Entry
from merganser.config.tasks import choice_of, group_mistakes, kind_mistakes, kinds_in_words
from merganser.config.text import KeyPath
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import HasHead, get_kind, kind_names
from merganser.evaluation.data_sets import read_headers
from merganser.evaluation.evaluator import open_evaluator
from merganser.inputs.deltas import check_pair
from merganser.inputs.heads import class_names
from merganser.learning.recalibration import Recalibration
from merganser.merging.binding import LAYERS, check_patterns
from merganser.models import TakesTexts, family_names, get_family
from merganser.models.naming import HEAD_NAMES
from merganser.sources.hub_data import rename_columns
from merganser.sources.installing import INSTALL, gguf_in
from merganser.sources.pointers import PackagePointer, lying, read_pointer, verified_package_path

BASE_SOURCE: KeyPath = ("base", "source")
MERGED: KeyPath = ("parameters", "merged")


def check_sources(params: Params, folder: Path, made: Callable[[Path], bool]) -> list[str]:
    """Check each source that lies on this disk, and each pair of base and task; raise InputError listing every mistake.

    What params.yaml has wrong of itself is passed over: other checks say it. Returns what a user should know of the
    pairs, such as settings that differ.

    `folder` is what relative sources start from. `made` tells whether a stage will write a path that is not there yet.
    """
    mistakes: list[Mistake] = []
    notes: list[str] = []
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    where = ("vocabularies", params.vocabulary, "source") if params.vocabulary else ("base", "source")
    sources: dict[KeyPath, str] = {} if params.base_source is None else {where: str(params.base_source)}
    for name, task in params.tasks.items():
        sources |= {("tasks", name, "source"): task.source, ("tasks", name, "data", "source"): task.data.source}
    sources |= {("unseen", name, "data", "source"): task.data.source for name, task in params.unseen.items()}
    sources |= {("unseen", name, "head"): task.head for name, task in params.unseen.items() if task.has_head}
    here, remote = dict[KeyPath, Path](), dict[KeyPath, Path]()
    for place, source in sources.items():
        with _caught(mistakes, place):
            path = _lying(folder / source, made)
            if path is not None and not _is_dequantised(path):
                here[place] = path
            elif (folder / source).exists():
                remote[place] = folder / source
    models: dict[str, Checkpoint | Adapter] = {}
    for name in params.tasks:
        if path := here.get(("tasks", name, "source")):
            with _caught(mistakes, ("tasks", name, "source")):
                check_model(path)
                models[name] = open_model(path)
    base: Checkpoint | None = None
    with _caught(mistakes, BASE_SOURCE):
        if params.base.is_mean:
            mean = mean_model(models, params.base.heads)
            base = mean if mean.specs else None  # while the models are not here
        elif path := here.get(BASE_SOURCE):
            check_model(path)
            base = open_checkpoint(path)
            if path.is_dir() and params.base.family in family_names():
                lacking = get_family(params.base.family).check(path, base)
                with _caught(mistakes, ("base", "heads")):
                    _check_heads(params, lacking or ())
    if params.vocabulary in params.vocabularies:
        with _caught(mistakes, ("vocabularies", params.vocabulary)):
            _check_vocabulary(params, params.vocabulary, here, models, rules)
    agreement = Agreement(here[BASE_SOURCE], rules) if BASE_SOURCE in here else None
    for name, model in models.items():
        with _caught(mistakes, ("tasks", name, "source")):
            if base is not None:
                if agreement is not None:
                    notes += agreement.check(name, here["tasks", name, "source"], (base, model))
                check_pair(base, model, rules, name)
    if base is not None:
        notes += _unused_patterns(params, base, models)
        _check_layers(params, base, rules, mistakes)
        _check_recalibrated(params, base, rules, mistakes)
    for task_place, about in params.with_data.items():
        place = (*task_place, "data", "source")
        if place in here and not kind_mistakes(task_place, about, params.base.family):
            own = here.get((*task_place, "source" if task_place[0] == "tasks" else "head"))
            _check_data(params, task_place, here[place], own, base, mistakes)
        elif place in remote:
            with _caught(mistakes, place):
                mistakes += group_mistakes(task_place, about, remote[place], read_pointer(remote[place]))
    if params.published is not None:
        with _caught(mistakes, ("published", "source")):
            read_published(folder / params.published.source)
    if mistakes:
        raise MistakesError(mistakes)
    return notes


def _unused_patterns(params: Params, base: Checkpoint, models: Mapping[str, Checkpoint | Adapter]) -> Iterator[str]:
    """Name the patterns that match no parameter of the base, and of heads none of a model: one may be misspelt."""
    names = {*unstacked(base).names, *base.dropped}
    whole = [model for model in models.values() if not isinstance(model, Adapter)]  # an adapter's head has other names
    heads = params.base.heads if len(whole) == len(params.tasks) else []
    own = names.union(*(model.names for model in whole))
    for place, patterns, known in (("parameters.merged", params.parameters.merged, names), ("base.heads", heads, own)):
        for pattern in patterns:
            if not any(is_head(name, [pattern]) for name in known):
                yield f"{place}: {pattern!r} matches no parameter"


def _check_vocabulary(
    params: Params,
    name: str,
    here: Mapping[KeyPath, Path],
    models: Mapping[str, Checkpoint | Adapter],
    rules: ParameterRules,
) -> None:
    """Check that models can be brought into one vocabulary, and that what is no table of it fits, if all are here."""
    base = here.get(("vocabularies", name, "source"))
    if len(models) < len(params.tasks) or (base is None and params.base_source is not None):
        return
    paths = {task: here["tasks", task, "source"] for task in params.tasks}
    plan = in_one_vocabulary(base, paths, choice_of(params, name))
    if base is None:
        return
    check_model(base)
    checkpoint = open_checkpoint(base)
    get_family(params.base.family).check(base, checkpoint)
    tables = {*plan.axes, *(own for each in plan.tasks for own in each.tables.values())}
    for task, model in models.items():
        check_configuration(base, paths[task], task)
        check_pair(checkpoint, model, replace(rules, heads=(*rules.heads, *sorted(tables))), task)


def _check_layers(params: Params, base: Checkpoint, rules: ParameterRules, mistakes: list[Mistake]) -> None:
    """Check that each pattern of an entry's `layers` matches a parameter that is merged."""
    names = [name for name in base.names if is_merged(name, base.spec(name).dtype, rules)]
    entries: list[tuple[KeyPath, Entry]] = [(("methods", name), entry) for name, entry in params.methods.items()]
    entries += [found for each in INPUTS.values() for found in each.entries(params)]
    for place, each in ((place, entry.values) for place, entry in (*entries, *studied_entries(params))):
        if isinstance(each.get(LAYERS), Mapping):
            with _caught(mistakes, place):
                check_patterns(each, names)


def _check_recalibrated(params: Params, base: Checkpoint, rules: ParameterRules, mistakes: list[Mistake]) -> None:
    """Check that what is recalibrated has batch-normalisation statistics, among the parameters that are merged."""
    if any(is_measured(name) and is_merged(name, base.spec(name).dtype, rules) for name in base.names):
        return
    for name, learned in params.learned.items():
        method = known_method(learned.learner)
        if method and isinstance(method.learner, Recalibration):
            reason = f"{learned.learner} needs batch normalisation, and no merged parameter of the base is of one"
            mistakes.append(Mistake(("learned", name, "learner"), f"{reason}; take it and its entries out"))


def _check_heads(params: Params, lacking: Collection[str]) -> None:
    """Refuse heads that leave out a parameter which the base lacks, so that no task's network would be whole."""
    heads = params.base.heads
    bare = {name: name.partition(".")[2] for name in lacking}  # as a base without a prefix has it
    beyond = [name for name in lacking if not is_head(name, heads) and not is_head(bare[name], heads)]
    kinds = {task.kind for task in params.tasks.values()} & set(kind_names())
    if heads and beyond and any(isinstance(get_kind(kind), HasHead) for kind in kinds):
        reason = (
            f"the base lacks {min(beyond)}, which each task's network needs, and none of {', '.join(heads)} names it"
        )
        raise InputError(f"{reason}; add {min(beyond).rpartition('.')[0]}.*, so that each task brings its own")


def _check_data(
    params: Params,
    task_place: tuple[str, str],
    source: Path,
    model: Path | None,
    base: Checkpoint | None,
    mistakes: list[Mistake],
) -> None:
    """Check the columns of a task's data set, the splits that are read of it, and its classes against the head's."""
    task = params.with_data[task_place]
    with _caught(mistakes, (*task_place, "data")):
        found = rename_columns(read_headers(source), task.data.columns, source)
        missing = {place: split for place, split in _splits_read(params, task_place).items() if split not in found}
        for place, split in missing.items():
            has = f"it has {', '.join(found)}{did_you_mean(split, found)}"
            mistakes.append(Mistake(place, f"{source} has no split {split!r}; {has}"))
        if not missing:
            evaluator = open_evaluator(task.kind, task.data.values, task.data.metric)
            for split, rows in found.items():
                read = evaluator.kind.columns(evaluator.settings) or ()
                if absent := [name for name in (TEXT, IMAGE, LABEL) if name in read and name not in rows.column_names]:
                    advice = column_advice(read_headers(source)[split].features, absent)
                    raise InputError(f"{source}: split {split} has no column {absent[0]!r}; {advice}")
            evaluator.check_data(found, source)
            classes = evaluator.kind.classes(next(iter(found.values())).features, evaluator.settings)
            if model is not None and params.base.heads:
                try:
                    evaluator.check_head(class_names(model / CONFIG), classes, ".".join(task_place))
                except InputError as error:
                    mistakes += mistakes_at((*task_place, "data"), error, has_place=True)
                    return
            outputs = evaluator.outputs(classes)
            if outputs is not None and (task_place[0] == "tasks" or model is not None):
                with _caught(mistakes, (*task_place, "kind")):
                    _check_outputs(params, task.kind, outputs, _head_shapes(params, base, model, task.kind))


def _head_shapes(
    params: Params, base: Checkpoint | None, model: Path | None, kind: str
) -> Collection[tuple[int, ...]] | None:
    """Return the shapes of a task's head, its own model's or else the base's; None if they are not known here."""
    own: Checkpoint | Adapter | None = base
    patterns: Sequence[str] = [*HEAD_NAMES, *(f"*.{name}" for name in HEAD_NAMES)]
    if params.base.heads:
        own, patterns = open_model(model) if model else None, params.base.heads
    elif TakesTexts not in get_kind(kind).NEEDS:
        return None  # heads of timm have any names
    if isinstance(own, Adapter):
        return [shape for name in own.updates if is_head(name, patterns) for shape in own.shapes(name)]
    return None if own is None else [own.spec(name).shape for name in own.names if is_head(name, patterns)]


def _check_outputs(params: Params, kind: str, outputs: int, shapes: Collection[tuple[int, ...]] | None) -> None:
    """Refuse a kind of task for which there is no head, or none with so many outputs."""
    if shapes is not None and not shapes:
        heads = params.base.heads
        lacks = f"the task's model has no parameter like {', '.join(heads)}" if heads else "the base has none"
        raise InputError(f"{kind} needs a head, and {lacks}; {kinds_in_words(params.base.family)}")
    if shapes and all(shape[:1] != (outputs,) for shape in shapes):
        has = ", ".join(str(list(shape)) for shape in sorted(shapes))
        needs = f"{kind} needs a head of {outputs} output{'s' * (outputs > 1)}"
        raise InputError(f"{needs}, and its parameters have the shapes {has}; name another kind, or the head's data")


def _splits_read(params: Params, task_place: tuple[str, str]) -> dict[KeyPath, str]:
    """Return the splits of a task's data that stages read, by the place where each is declared."""
    data, name = params.with_data[task_place].data, task_place[1]
    own: KeyPath = (*task_place, "data")
    read = {(*own, "split") if data.split else ("evaluation", "split"): params.split_of(name)}
    if shown := data.values.get("fewshot_split"):
        read[*own, "fewshot_split"] = shown
    if params.validation and name in params.tasks:
        place = (*own, "validation") if data.validation else ("validation", "split")
        read[place] = params.validation_split_of(name)
    return read


def _lying(source: Path, made: Callable[[Path], bool]) -> Path | None:
    """Return where a source lies here, to be read; raise InputError when it never will, or its pointer is wrong."""
    if source.exists():
        pointer = read_pointer(source)
        return verified_package_path(pointer, source) if isinstance(pointer, PackagePointer) else lying(source)
    if not made(source):
        beside = [each.name for each in source.parent.iterdir()] if source.parent.is_dir() else []
        near = did_you_mean(source.name, beside)
        raise InputError(f"{source}: no such file or folder, and no stage makes it{near}")
    return None


def _is_dequantised(source: Path) -> bool:
    """Tell whether a source is a model of llama.cpp's, which is read when it is fetched; refuse it if it cannot be."""
    file = gguf_in(source)
    if file is not None and find_spec("gguf") is None:
        raise InputError(f"{file}: {INSTALL}")
    return file is not None


@contextmanager
def _caught(mistakes: list[Mistake], place: KeyPath) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        own = str(error).startswith(f"{'.'.join(MERGED)}: ")  # whichever model it was found with
        mistakes += mistakes_at(MERGED if own else place, error, has_place=own)
