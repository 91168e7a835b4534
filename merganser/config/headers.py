"""Compare the declared sources before a run, by headers alone: models with the base, data sets with kinds and heads."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from merganser.config.columns import IMAGE, LABEL, TEXT, column_advice
from merganser.config.entries import studied_entries
from merganser.config.inputs import INPUTS
from merganser.config.inputs.base import known_method
from merganser.config.mistakes import Mistake, MistakesError, collecting_mistakes, mistakes_at
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
from merganser.sources.pointers import PackagePointer, local_path, read_pointer, verified_package_path

BASE_SOURCE: KeyPath = ("base", "source")


def check_sources(params: Params, folder: Path, made: Callable[[Path], bool]) -> list[str]:
    """Check each source on this disk, and each pair of base and task; raise InputError listing every mistake.

    Mistakes inside params.yaml are left to other checks. Returns notes about the pairs, such as settings that
    differ. `folder`: the root of relative sources. `made` tells whether a stage will write a missing path.
    """
    sources = _Sources(params, folder, made)
    notes: list[str] = []
    if params.vocabulary in params.vocabularies:
        with collecting_mistakes(sources.mistakes, ("vocabularies", params.vocabulary)):
            sources.check_vocabulary(params.vocabulary)
    if sources.base is not None:
        notes += sources.check_pairs(sources.base)
        sources.check_layers(sources.base)
        sources.check_recalibrated(sources.base)
    sources.check_data_sets()
    if params.published is not None:
        with collecting_mistakes(sources.mistakes, ("published", "source")):
            read_published(folder / params.published.source)
    if sources.mistakes:
        raise MistakesError(sources.mistakes)
    return notes


class _Sources:
    """The sources of a comparison that are on this disk, opened, and the mistakes that were found in them.

    `here`: the paths of those on this disk; `remote`: the pointers of those to fetch, both by their places in the
    file. `base`: the base, or the models' mean in its place; None if it is not here or has a mistake.
    """

    def __init__(self, params: Params, folder: Path, made: Callable[[Path], bool]) -> None:
        self.params, self.mistakes = params, list[Mistake]()
        self.rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
        self.here, self.remote = dict[KeyPath, Path](), dict[KeyPath, Path]()
        for place, source in _sources(params).items():
            with collecting_mistakes(self.mistakes, place):
                path = _local_path(folder / source, made)
                if path is not None and not _is_dequantised(path):
                    self.here[place] = path
                elif (folder / source).exists():
                    self.remote[place] = folder / source
        self.models: dict[str, Checkpoint | Adapter] = {}
        for name in params.tasks:
            if path := self.here.get(("tasks", name, "source")):
                with collecting_mistakes(self.mistakes, ("tasks", name, "source")):
                    check_model(path)
                    self.models[name] = open_model(path)
        self.base: Checkpoint | None = None
        with collecting_mistakes(self.mistakes, BASE_SOURCE):
            self._open_base()

    def _open_base(self) -> None:
        base = self.params.base
        if base.is_mean:
            mean = mean_model(self.models, base.heads)
            self.base = mean if mean.specs else None  # while the models are not here
        elif path := self.here.get(BASE_SOURCE):
            check_model(path)
            self.base = open_checkpoint(path)
            if path.is_dir() and base.family in family_names():
                lacking = get_family(base.family).check(path, self.base)
                with collecting_mistakes(self.mistakes, ("base", "heads")):
                    _check_heads(self.params, lacking or ())

    def check_pairs(self, base: Checkpoint) -> list[str]:
        """Check each model against the base; return notes about them."""
        notes: list[str] = []
        agreement = Agreement(self.here[BASE_SOURCE], self.rules) if BASE_SOURCE in self.here else None
        for name, model in self.models.items():
            with collecting_mistakes(self.mistakes, ("tasks", name, "source")):
                if agreement is not None:
                    notes += agreement.check(name, self.here["tasks", name, "source"], (base, model))
                check_pair(base, model, self.rules, name)
        return [*notes, *self._unused_patterns(base)]

    def _unused_patterns(self, base: Checkpoint) -> Iterator[str]:
        """Report patterns that match no parameter of the base, or for heads of no model: one may be misspelt."""
        params, names = self.params, {*unstacked(base).names, *base.dropped}
        whole = [
            model for model in self.models.values() if not isinstance(model, Adapter)
        ]  # adapters' have other names
        heads = params.base.heads if len(whole) == len(params.tasks) else []
        own = names.union(*(model.names for model in whole))
        declared = (("parameters.merged", params.parameters.merged, names), ("base.heads", heads, own))
        for place, patterns, known in declared:
            for pattern in patterns:
                if not any(is_head(name, [pattern]) for name in known):
                    yield f"{place}: {pattern!r} matches no parameter"

    def check_vocabulary(self, name: str) -> None:
        """Check that all models, if they are here, fit into one vocabulary, and their other parameters fit too."""
        params, base = self.params, self.here.get(("vocabularies", name, "source"))
        if len(self.models) < len(params.tasks) or (base is None and params.base_source is not None):
            return
        paths = {task: self.here["tasks", task, "source"] for task in params.tasks}
        plan = in_one_vocabulary(base, paths, choice_of(params, name))
        if base is None:
            return
        check_model(base)
        checkpoint = open_checkpoint(base)
        get_family(params.base.family).check(base, checkpoint)
        tables = {*plan.axes, *(own for each in plan.tasks for own in each.tables.values())}
        rules = replace(self.rules, heads=(*self.rules.heads, *sorted(tables)))
        for task, model in self.models.items():
            check_configuration(base, paths[task], task)
            check_pair(checkpoint, model, rules, task)

    def check_layers(self, base: Checkpoint) -> None:
        """Check that each pattern of an entry's `layers` matches a parameter that is merged."""
        names = [name for name in base.names if is_merged(name, base.spec(name).dtype, self.rules)]
        entries: list[tuple[KeyPath, Entry]] = [(("methods", name), one) for name, one in self.params.methods.items()]
        entries += [merged for each in INPUTS.values() for merged in each.entries(self.params)]
        for place, entry in (*entries, *studied_entries(self.params)):
            if isinstance(entry.values.get(LAYERS), Mapping):
                with collecting_mistakes(self.mistakes, place):
                    check_patterns(entry.values, names)

    def check_recalibrated(self, base: Checkpoint) -> None:
        """Check that a recalibrated merge has batch-normalisation statistics among its merged parameters."""
        if any(is_measured(name) and is_merged(name, base.spec(name).dtype, self.rules) for name in base.names):
            return
        for name, learned in self.params.learned.items():
            method = known_method(learned.learner)
            if method and isinstance(method.learner, Recalibration):
                reason = f"{learned.learner} needs batch normalisation, and no merged parameter of the base is of one"
                text = f"{reason}; take it and its entries out"
                self.mistakes.append(Mistake(("learned", name, "learner"), text))

    def check_data_sets(self) -> None:
        """Check each task's data set, or its pointer, if the family supports the task's kind."""
        for task_place, about in self.params.with_data.items():
            place = (*task_place, "data", "source")
            if place in self.here and not kind_mistakes(task_place, about, self.params.base.family):
                with collecting_mistakes(self.mistakes, (*task_place, "data")):
                    self._check_data(task_place, self.here[place])
            elif place in self.remote:
                with collecting_mistakes(self.mistakes, place):
                    pointer = read_pointer(self.remote[place])
                    self.mistakes += group_mistakes(task_place, about, self.remote[place], pointer)

    def _check_data(self, task_place: tuple[str, str], source: Path) -> None:
        """Check the columns of a task's data set, the splits that stages read, and its classes against the head."""
        params, task = self.params, self.params.with_data[task_place]
        model = self.here.get((*task_place, "source" if task_place[0] == "tasks" else "head"))
        splits = rename_columns(read_headers(source), task.data.columns, source)
        missing = {place: split for place, split in _splits_read(params, task_place).items() if split not in splits}
        for place, split in missing.items():
            has = f"it has {', '.join(splits)}{did_you_mean(split, splits)}"
            self.mistakes.append(Mistake(place, f"{source} has no split {split!r}; {has}"))
        if not missing:
            evaluator = open_evaluator(task.kind, task.data.values, task.data.metric)
            for split, rows in splits.items():
                read = evaluator.kind.columns(evaluator.settings) or ()
                if absent := [name for name in (TEXT, IMAGE, LABEL) if name in read and name not in rows.column_names]:
                    advice = column_advice(read_headers(source)[split].features, absent)
                    raise InputError(f"{source}: split {split} has no column {absent[0]!r}; {advice}")
            evaluator.check_data(splits, source)
            classes = evaluator.kind.classes(next(iter(splits.values())).features, evaluator.settings)
            if model is not None and params.base.heads:
                try:
                    evaluator.check_head(class_names(model), classes, ".".join(task_place))
                except InputError as error:
                    self.mistakes += mistakes_at((*task_place, "data"), error, has_place=True)
                    return
            outputs = evaluator.outputs(classes)
            if outputs is not None and (task_place[0] == "tasks" or model is not None):
                with collecting_mistakes(self.mistakes, (*task_place, "kind")):
                    _check_outputs(params, task.kind, outputs, self._head_shapes(model, task.kind))

    def _head_shapes(self, model: Path | None, kind: str) -> Collection[tuple[int, ...]] | None:
        """Return the shapes of a task's head, its own model's or else the base's; None if they are not known here."""
        own: Checkpoint | Adapter | None = self.base
        patterns: Sequence[str] = [*HEAD_NAMES, *(f"*.{name}" for name in HEAD_NAMES)]
        if self.params.base.heads:
            own, patterns = open_model(model) if model else None, self.params.base.heads
        elif TakesTexts not in get_kind(kind).NEEDS:
            return None  # heads of timm have any names
        if isinstance(own, Adapter):
            return [shape for name in own.updates if is_head(name, patterns) for shape in own.shapes(name)]
        return None if own is None else [own.spec(name).shape for name in own.names if is_head(name, patterns)]


def _sources(params: Params) -> dict[KeyPath, str]:
    """Return the sources of models and data sets, by the place that declares each."""
    where = ("vocabularies", params.vocabulary, "source") if params.vocabulary else BASE_SOURCE
    sources: dict[KeyPath, str] = {} if params.base_source is None else {where: str(params.base_source)}
    for name, task in params.tasks.items():
        sources |= {("tasks", name, "source"): task.source, ("tasks", name, "data", "source"): task.data.source}
    sources |= {("unseen", name, "data", "source"): task.data.source for name, task in params.unseen.items()}
    sources |= {("unseen", name, "head"): task.head for name, task in params.unseen.items() if task.has_head}
    return sources


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


def _check_outputs(params: Params, kind: str, outputs: int, shapes: Collection[tuple[int, ...]] | None) -> None:
    """Refuse a kind of task without a head, or without a head of so many outputs."""
    if shapes is not None and not shapes:
        heads = params.base.heads
        lacks = f"the task's model has no parameter like {', '.join(heads)}" if heads else "the base has none"
        raise InputError(f"{kind} needs a head, and {lacks}; {kinds_in_words(params.base.family)}")
    if shapes and all(shape[:1] != (outputs,) for shape in shapes):
        has = ", ".join(str(list(shape)) for shape in sorted(shapes))
        needs = f"{kind} needs a head of {outputs} output{'s' * (outputs > 1)}"
        raise InputError(f"{needs}, and its parameters have the shapes {has}; name another kind, or the head's data")


def _splits_read(params: Params, task_place: tuple[str, str]) -> dict[KeyPath, str]:
    """Return the splits of a task's data that stages read, by the place that declares each."""
    data, name = params.with_data[task_place].data, task_place[1]
    own: KeyPath = (*task_place, "data")
    read = {(*own, "split") if data.split else ("evaluation", "split"): params.split_of(name)}
    if shown := data.values.get("fewshot_split"):
        read[*own, "fewshot_split"] = shown
    if params.validation and name in params.tasks:
        place = (*own, "validation") if data.validation else ("validation", "split")
        read[place] = params.validation_split_of(name)
    return read
