"""Compare each task's data set with its kind and its head before a run, by headers alone."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.kinds import is_head
from merganser.checkpoints.reading import Checkpoint
from merganser.config.columns import IMAGE, LABEL, TEXT, column_advice
from merganser.config.mistakes import Mistake, collecting_mistakes, mistakes_at
from merganser.config.params import Params
from merganser.config.tasks import group_mistakes, kind_mistakes, kinds_in_words
from merganser.config.text import KeyPath
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import get_kind
from merganser.evaluation.data_sets import read_headers
from merganser.evaluation.evaluator import open_evaluator
from merganser.inputs.heads import class_names
from merganser.models import TakesTexts
from merganser.models.naming import HEAD_NAMES
from merganser.sources.hub_data import rename_columns
from merganser.sources.pointers import read_pointer


def check_data_sets(
    params: Params,
    here: Mapping[KeyPath, Path],
    remote: Mapping[KeyPath, Path],
    base: Checkpoint | None,
    mistakes: list[Mistake],
) -> None:
    """Check each task's data set, or its pointer, if the family supports the task's kind."""
    for task_place, about in params.with_data.items():
        place = (*task_place, "data", "source")
        if place in here and not kind_mistakes(task_place, about, params.base.family):
            own = here.get((*task_place, "source" if task_place[0] == "tasks" else "head"))
            _check_data(params, task_place, here[place], own, base, mistakes)
        elif place in remote:
            with collecting_mistakes(mistakes, place):
                mistakes += group_mistakes(task_place, about, remote[place], read_pointer(remote[place]))


def _check_data(
    params: Params,
    task_place: tuple[str, str],
    source: Path,
    model: Path | None,
    base: Checkpoint | None,
    mistakes: list[Mistake],
) -> None:
    """Check the columns of a task's data set, the splits that stages read, and its classes against the head."""
    task = params.with_data[task_place]
    with collecting_mistakes(mistakes, (*task_place, "data")):
        splits = rename_columns(read_headers(source), task.data.columns, source)
        missing = {place: split for place, split in _splits_read(params, task_place).items() if split not in splits}
        for place, split in missing.items():
            has = f"it has {', '.join(splits)}{did_you_mean(split, splits)}"
            mistakes.append(Mistake(place, f"{source} has no split {split!r}; {has}"))
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
                    mistakes += mistakes_at((*task_place, "data"), error, has_place=True)
                    return
            outputs = evaluator.outputs(classes)
            if outputs is not None and (task_place[0] == "tasks" or model is not None):
                with collecting_mistakes(mistakes, (*task_place, "kind")):
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
