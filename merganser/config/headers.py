"""Compare the declared sources before a run, by headers alone."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.configurations import check_configuration
from merganser.checkpoints.kinds import ParameterRules, is_head, is_measured, is_merged
from merganser.checkpoints.mean import mean_model
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.checkpoints.views import unstacked
from merganser.checkpoints.vocabulary.plan import in_one_vocabulary
from merganser.config.data_headers import check_data_sets
from merganser.config.entries import studied_entries
from merganser.config.inputs import INPUTS
from merganser.config.inputs.base import known_method
from merganser.config.mistakes import Mistake, MistakesError, collecting_mistakes
from merganser.config.params import Params
from merganser.config.published import read_published
from merganser.config.sections import Entry
from merganser.config.tasks import choice_of
from merganser.config.text import KeyPath
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import HasHead, get_kind, kind_names
from merganser.inputs.deltas import check_pair
from merganser.learning.recalibration import Recalibration
from merganser.merging.binding import LAYERS, check_patterns
from merganser.models import family_names, get_family
from merganser.sources.installing import INSTALL, gguf_in
from merganser.sources.pointers import PackagePointer, local_path, read_pointer, verified_package_path

BASE_SOURCE: KeyPath = ("base", "source")


def check_sources(params: Params, folder: Path, made: Callable[[Path], bool]) -> list[str]:
    """Check each source on this disk, and each pair of base and task; raise InputError listing every mistake.

    Mistakes inside params.yaml are left to other checks. Returns notes about the pairs, such as settings that
    differ. `folder`: the root of relative sources. `made` tells whether a stage will write a missing path.
    """
    mistakes: list[Mistake] = []
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    here, remote = _located(params, folder, made, mistakes)
    models = _opened_models(params, here, mistakes)
    base = _opened_base(params, here, models, mistakes)
    if params.vocabulary in params.vocabularies:
        with collecting_mistakes(mistakes, ("vocabularies", params.vocabulary)):
            _check_vocabulary(params, params.vocabulary, here, models, rules)
    notes: list[str] = []
    if base is not None:
        notes += _check_pairs(params, here, base, models, rules, mistakes)
        _check_layers(params, base, rules, mistakes)
        _check_recalibrated(params, base, rules, mistakes)
    check_data_sets(params, here, remote, base, mistakes)
    if params.published is not None:
        with collecting_mistakes(mistakes, ("published", "source")):
            read_published(folder / params.published.source)
    if mistakes:
        raise MistakesError(mistakes)
    return notes


def _sources(params: Params) -> dict[KeyPath, str]:
    """Return the sources of models and data sets, by the place that declares each."""
    where = ("vocabularies", params.vocabulary, "source") if params.vocabulary else BASE_SOURCE
    sources: dict[KeyPath, str] = {} if params.base_source is None else {where: str(params.base_source)}
    for name, task in params.tasks.items():
        sources |= {("tasks", name, "source"): task.source, ("tasks", name, "data", "source"): task.data.source}
    sources |= {("unseen", name, "data", "source"): task.data.source for name, task in params.unseen.items()}
    sources |= {("unseen", name, "head"): task.head for name, task in params.unseen.items() if task.has_head}
    return sources


def _located(
    params: Params, folder: Path, made: Callable[[Path], bool], mistakes: list[Mistake]
) -> tuple[dict[KeyPath, Path], dict[KeyPath, Path]]:
    """Return the paths of sources on this disk, and the pointers of those to fetch."""
    here, remote = dict[KeyPath, Path](), dict[KeyPath, Path]()
    for place, source in _sources(params).items():
        with collecting_mistakes(mistakes, place):
            path = _local_path(folder / source, made)
            if path is not None and not _is_dequantised(path):
                here[place] = path
            elif (folder / source).exists():
                remote[place] = folder / source
    return here, remote


def _opened_models(
    params: Params, here: Mapping[KeyPath, Path], mistakes: list[Mistake]
) -> dict[str, Checkpoint | Adapter]:
    """Open the tasks' models that are on this disk."""
    models: dict[str, Checkpoint | Adapter] = {}
    for name in params.tasks:
        if path := here.get(("tasks", name, "source")):
            with collecting_mistakes(mistakes, ("tasks", name, "source")):
                check_model(path)
                models[name] = open_model(path)
    return models


def _opened_base(
    params: Params,
    here: Mapping[KeyPath, Path],
    models: Mapping[str, Checkpoint | Adapter],
    mistakes: list[Mistake],
) -> Checkpoint | None:
    """Open the base, or the models' mean in its place; None if it is not here or has a mistake."""
    base: Checkpoint | None = None
    with collecting_mistakes(mistakes, BASE_SOURCE):
        if params.base.is_mean:
            mean = mean_model(models, params.base.heads)
            base = mean if mean.specs else None  # while the models are not here
        elif path := here.get(BASE_SOURCE):
            check_model(path)
            base = open_checkpoint(path)
            if path.is_dir() and params.base.family in family_names():
                lacking = get_family(params.base.family).check(path, base)
                with collecting_mistakes(mistakes, ("base", "heads")):
                    _check_heads(params, lacking or ())
    return base


def _check_pairs(
    params: Params,
    here: Mapping[KeyPath, Path],
    base: Checkpoint,
    models: Mapping[str, Checkpoint | Adapter],
    rules: ParameterRules,
    mistakes: list[Mistake],
) -> list[str]:
    """Check each model against the base; return notes about them."""
    notes: list[str] = []
    agreement = Agreement(here[BASE_SOURCE], rules) if BASE_SOURCE in here else None
    for name, model in models.items():
        with collecting_mistakes(mistakes, ("tasks", name, "source")):
            if agreement is not None:
                notes += agreement.check(name, here["tasks", name, "source"], (base, model))
            check_pair(base, model, rules, name)
    return [*notes, *_unused_patterns(params, base, models)]


def _unused_patterns(params: Params, base: Checkpoint, models: Mapping[str, Checkpoint | Adapter]) -> Iterator[str]:
    """Report patterns that match no parameter of the base, or for heads of no model: one may be misspelt."""
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
    """Check that all models, if they are here, fit into one vocabulary, and their other parameters fit too."""
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
    entries += [merged for each in INPUTS.values() for merged in each.entries(params)]
    for place, each in ((place, entry.values) for place, entry in (*entries, *studied_entries(params))):
        if isinstance(each.get(LAYERS), Mapping):
            with collecting_mistakes(mistakes, place):
                check_patterns(each, names)


def _check_recalibrated(params: Params, base: Checkpoint, rules: ParameterRules, mistakes: list[Mistake]) -> None:
    """Check that a recalibrated merge has batch-normalisation statistics among its merged parameters."""
    if any(is_measured(name) and is_merged(name, base.spec(name).dtype, rules) for name in base.names):
        return
    for name, learned in params.learned.items():
        method = known_method(learned.learner)
        if method and isinstance(method.learner, Recalibration):
            reason = f"{learned.learner} needs batch normalisation, and no merged parameter of the base is of one"
            mistakes.append(Mistake(("learned", name, "learner"), f"{reason}; take it and its entries out"))


def _check_heads(params: Params, lacking: Collection[str]) -> None:
    """Refuse heads that leave out a parameter that the base lacks: no task's network would be complete."""
    heads = params.base.heads
    bare = {name: name.partition(".")[2] for name in lacking}  # as a base without a prefix has it
    beyond = [name for name in lacking if not is_head(name, heads) and not is_head(bare[name], heads)]
    kinds = {task.kind for task in params.tasks.values()} & set(kind_names())
    if beyond and any(isinstance(get_kind(kind), HasHead) for kind in kinds):
        named = f"none of {', '.join(heads)}" if heads else "no pattern"
        reason = f"the base lacks {min(beyond)}, which each task's network needs, and {named} names it"
        raise InputError(f"{reason}; add {min(beyond).rpartition('.')[0]}.*, so that each task brings its own")


def _local_path(source: Path, made: Callable[[Path], bool]) -> Path | None:
    """Return the path of a source; None if it will be fetched or made. Raises InputError otherwise."""
    if source.exists():
        pointer = read_pointer(source)
        return verified_package_path(pointer, source) if isinstance(pointer, PackagePointer) else local_path(source)
    if not made(source):
        beside = [each.name for each in source.parent.iterdir()] if source.parent.is_dir() else []
        near = did_you_mean(source.name, beside)
        raise InputError(f"{source}: no such file or folder, and no stage makes it{near}")
    return None


def _is_dequantised(source: Path) -> bool:
    """Tell whether a source is a llama.cpp model, which fetching converts; refuse it if it cannot be read."""
    file = gguf_in(source)
    if file is not None and find_spec("gguf") is None:
        raise InputError(f"{file}: {INSTALL}")
    return file is not None
