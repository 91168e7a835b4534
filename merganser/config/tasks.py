"""Check the family and the tasks of a `params.yaml` against the modules they name."""

from collections.abc import Iterator
from pathlib import Path

from merganser.config.data_class import adapts_only
from merganser.config.explaining import mistakes_in
from merganser.config.inputs import INPUTS
from merganser.config.params import UNMEASURED, Data, Params, Task, Unseen
from merganser.config.repairing import MISSING
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import AsksServers, GivesClasses, HasHead, TaskKind, get_kind, kind_names
from merganser.models import family_names, get_family, has_ability
from merganser.sources.pointers import Pointer, repositories


def task_mistakes(params: Params) -> list[str]:
    """List the mistakes in the family and in the tasks' kinds, each with its place."""
    mistakes = []
    try:
        get_family(params.base.family)
    except InputError as error:
        mistakes += [str(error)]
    for name, task in params.tasks.items():
        said = "kind" in task.model_fields_set
        if said or MISSING not in (task.data.source, params.base.family):  # else it may follow from family and data
            mistakes += kind_mistakes(f"tasks.{name}", task, params.base.family)
        same = params.validation and params.validation_split_of(name) == params.split_of(name)
        if same and not adapts_only(params):
            place = "validation.split" if task.data.validation is None else f"tasks.{name}.data.validation"
            reason = f"{params.split_of(name)!r} is the split that {name} is measured on"
            remedy = "name another: only adaptation without labels may read that one"
            mistakes.append(f"{place}: {reason}; {remedy}")
    return [*mistakes, *_unseen_mistakes(params), *_unmeasured_mistakes(params), *_server_mistakes(params)]


def _unseen_mistakes(params: Params) -> Iterator[str]:
    """List what unseen tasks lack: they have data, and a head only where they name a checkpoint that has one."""
    for name, task in params.unseen.items():
        where = f"unseen.{name}"
        if name in params.tasks:
            yield f"{where}: there is a task of this name, which is merged; leave one of them out, or rename it"
        if task.kind == UNMEASURED:
            yield f"{where}.kind: an unseen task is its data alone, and {UNMEASURED} has none; leave it out"
            continue
        yield from kind_mistakes(where, task, params.base.family)
        if task.kind not in kind_names() or params.base.family not in family_names():
            continue
        needs_head = isinstance(get_kind(task.kind), HasHead)
        if task.has_head and not needs_head:
            yield f"{where}.head: {task.kind} makes its answers of words and has no head; leave it out"
        elif task.has_head and not params.base.heads:
            yield f"{where}.head: base.heads does not say which parameters a head is; name them, such as classifier.*"
        elif needs_head and not task.has_head:
            kinds = {each: get_kind(each) for each in kind_names() if each != UNMEASURED}
            without = [each for each, kind in kinds.items() if not isinstance(kind, HasHead)]
            fitting = [each for each in without if fits(kinds[each], params.base.family)]
            can = f"{params.base.family} does {', '.join(fitting) or 'none: choose a base of another family'}"
            reason = f"{task.kind} needs a head of its own; name a checkpoint that has one under {where}.head"
            yield f"{where}.kind: {reason}, or a kind that makes its answers of words ({can})"
        elif params.embeddings and not isinstance(get_kind(task.kind), GivesClasses):
            reason = (
                f"{task.kind} is not a kind with classes, whose names entries that read embeddings compare tasks by"
            )
            yield f"{where}.kind: {reason}; leave the task out, or embeddings"


def _server_mistakes(params: Params) -> list[str]:
    """List why a server cannot be asked; kinds that are not known are said elsewhere."""
    kinds = [task.kind for task in params.tasks.values() if task.kind in kind_names()]
    if params.evaluation.server is None or any(isinstance(get_kind(kind), AsksServers) for kind in kinds):
        return []
    asking = ", ".join(name for name in kind_names() if isinstance(get_kind(name), AsksServers))
    return [f"evaluation.server: no task is of a kind that servers are asked, which is {asking}; leave it out"]


def _unmeasured_mistakes(params: Params) -> list[str]:
    """List what reads data of all tasks where some have none."""
    unmeasured = [name for name in params.tasks if name not in params.measured]
    if not unmeasured:
        return []
    if not params.measured:
        return [f"tasks: all are {UNMEASURED}; give at least one a kind and data"]
    read = [name for name, each in INPUTS.items() if each.every_task and each.declared(params)]
    studied = {"tasks": params.studies.tasks.methods, "rank": params.studies.rank.fractions}
    read += [f"studies.{part}" for part, some in studied.items() if some]
    reason = f"tasks.{unmeasured[0]}.kind: a task that is {UNMEASURED} has no data"
    return [f"{reason}, which {section} reads; leave one of them out" for section in read]


def kind_mistakes(where: str, task: Task | Unseen, family: str) -> list[str]:
    """List the mistakes in a task's kind and its keys, each with its place."""
    try:
        kind = get_kind(task.kind)
    except InputError as error:
        return [f"{where}.kind: {error}"]
    mistakes = []
    if family in family_names() and not fits(kind, family):
        kinds = [name for name in kind_names() if name != UNMEASURED]
        fitting = ", ".join(name for name in kinds if fits(get_kind(name), family))
        reason = f"the family {family} does not support the kind of task {task.kind}; it supports {fitting}"
        said = f"{reason}: name another kind, or another base.family"
        left_out = f"missing, and it does not follow from the data; {family} supports {fitting}: name one"
        mistakes.append(f"{where}.kind: {said if 'kind' in task.model_fields_set else left_out}")
    if task.data.metric is not None and task.data.metric not in kind.METRICS:
        known = f"{task.kind} has {', '.join(kind.METRICS)}{did_you_mean(task.data.metric, kind.METRICS)}"
        mistakes.append(f"{where}.data.metric: {task.data.metric!r} is not a metric of this kind of task; {known}")
    above = (*where.split("."), "data")
    return [*mistakes, *mistakes_in(task.data.values, kind.Settings, above, tuple(Data.model_fields))]


def check_group(task: Task | Unseen, source: Path, pointer: Pointer | None) -> None:
    """Refuse the pointer of a file that names other data sets, of a group, than a task's keys do."""
    wanted = task.data.values.get("group") or {}
    members = [member for member in repositories(pointer) if member]
    if set(wanted) != set(members):
        names = f"names {', '.join(members)}" if members else "names no group"
        raise InputError(f"data.group: has {', '.join(wanted) or 'nothing'}, and {source} {names}; name the same")


def fits(kind: TaskKind, family: str) -> bool:
    """Tell whether a family's networks do tasks of a kind."""
    return all(has_ability(family, ability) for ability in kind.NEEDS)
