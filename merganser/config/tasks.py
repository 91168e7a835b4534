"""Check the family, the tasks and the vocabularies of a `params.yaml` against the modules that they name.

Also tells which data an entry used besides the checkpoints. Imports torch, and transformers for its configurations.
"""

from collections.abc import Iterator
from pathlib import Path

from merganser import registry
from merganser.checkpoints.vocabulary.plan import BASE, TokenizerChoice, check_model_names
from merganser.config.inputs import INPUTS, input_of_entry
from merganser.config.inputs.base import known_method
from merganser.config.mistakes import MISSING, Mistake, mistakes_at, mistakes_in
from merganser.config.params import Params
from merganser.config.sections import OWN_MODELS, UNMEASURED, VOCABULARIES, Data, Entry, Task, Unseen
from merganser.config.text import KeyPath
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import AsksServers, GivesClasses, HasHead, TaskKind, get_kind, kind_names
from merganser.merging.about import Involvement
from merganser.models import family_names, get_family, has_ability
from merganser.sources.pointers import Pointer, repositories

ORDER: tuple[Involvement, ...] = ("NDI", "VDI", "TTA")
TITLES: dict[Involvement, str] = {"NDI": "no data", "VDI": "validation data", "TTA": "test-time adaptation"}


def data_class(params: Params, entry: Entry) -> Involvement:
    """Return an entry's data class: its method's if its input was computed from data, else no data."""
    read = input_of_entry(entry)
    classes: list[Involvement] = ["NDI"]
    if read is not None and read.validation:
        classes.append(max("VDI", registry.get(entry.method).involvement, key=ORDER.index))
    if before := params.merged_before(entry):
        classes.append(data_class(params, params.methods[before]))
    return max(classes, key=ORDER.index)


def is_transductive(params: Params, entry: Entry) -> bool:
    """Tell whether an entry was adapted on unlabelled examples of a task that it is measured on."""
    if params.validation is None or data_class(params, entry) == "NDI":
        return False
    return any(params.validation_split_of(task) == params.split_of(task) for task in params.tasks)


def adapts_only(params: Params) -> bool:
    """Tell whether all readers of data only adapt, without labels: then they may use the measured split."""
    if params.studies.ablations:
        return False
    reading = [each for each in INPUTS.values() if each.validation]
    methods = [known_method(each.applied_by(one)) for each in reading for one in each.declared(params).values()]
    return bool(methods) and all(method is not None and method.involvement == "TTA" for method in methods)


def task_mistakes(params: Params) -> list[Mistake]:
    """List the mistakes in the family and in the tasks' kinds, each with its place."""
    mistakes: list[Mistake] = []
    try:
        get_family(params.base.family)
    except InputError as error:
        mistakes += mistakes_at(("base", "family"), error, has_place=True)
    for name, task in params.tasks.items():
        said = "kind" in task.model_fields_set
        if said or MISSING not in (task.data.source, params.base.family):  # else it may follow from family and data
            mistakes += kind_mistakes(("tasks", name), task, params.base.family)
        same = params.validation and params.validation_split_of(name) == params.split_of(name)
        if same and not adapts_only(params):
            own = ("tasks", name, "data", "validation")
            place = ("validation", "split") if task.data.validation is None else own
            reason = f"{params.split_of(name)!r} is the split that {name} is measured on"
            remedy = "name another: only adaptation without labels may read that one"
            mistakes.append(Mistake(place, f"{reason}; {remedy}"))
    mistakes += _shown_mistakes(params)
    return [*mistakes, *_unseen_mistakes(params), *_unmeasured_mistakes(params), *_server_mistakes(params)]


def _shown_mistakes(params: Params) -> Iterator[Mistake]:
    """List splits that are both shown before questions and measured on."""
    for place, task in params.with_data.items():
        split = task.data.values.get("fewshot_split")
        if split is not None and split == params.split_of(place[1]):
            yield Mistake(
                (*place, "data", "fewshot_split"), f"{split!r} is the split that is measured on; name another"
            )


def _unseen_mistakes(params: Params) -> Iterator[Mistake]:
    """List what unseen tasks lack: data, and for a kind with a head a checkpoint that has one."""
    for name, task in params.unseen.items():
        where = ("unseen", name)
        if name in params.tasks:
            yield Mistake(where, "there is a task of this name, which is merged; leave one of them out, or rename it")
        if task.kind == UNMEASURED:
            yield Mistake(
                (*where, "kind"), f"an unseen task is its data alone, and {UNMEASURED} has none; leave it out"
            )
            continue
        yield from kind_mistakes(where, task, params.base.family)
        if task.kind not in kind_names() or params.base.family not in family_names():
            continue
        needs_head = isinstance(get_kind(task.kind), HasHead)
        if task.has_head and not needs_head:
            yield Mistake((*where, "head"), f"{task.kind} makes its answers of words and has no head; leave it out")
        elif task.has_head and not params.base.heads:
            yield Mistake(
                (*where, "head"), "base.heads does not say which parameters a head is; name them, such as classifier.*"
            )
        elif needs_head and not task.has_head:
            reason = f"{task.kind} needs its own head; name a checkpoint that has one under {'.'.join(where)}.head"
            yield Mistake((*where, "kind"), f"{reason}, or {kinds_in_words(params.base.family)}")
        elif params.embeddings and not isinstance(get_kind(task.kind), GivesClasses):
            reason = f"{task.kind} has no classes, and entries that read embeddings compare tasks by class names"
            yield Mistake((*where, "kind"), f"{reason}; leave the task out, or embeddings")


def kinds_in_words(family: str) -> str:
    """Name the family's kinds of task that need no head, as advice."""
    kinds = {each: get_kind(each) for each in kind_names() if each != UNMEASURED}
    fitting = [each for each, kind in kinds.items() if not isinstance(kind, HasHead) and fits(kind, family)]
    can = f"{family} does {', '.join(fitting) or 'none: choose a base of another family'}"
    return f"choose a kind that answers in words ({can})"


def _server_mistakes(params: Params) -> list[Mistake]:
    """List why a server cannot be used; unknown kinds are reported elsewhere."""
    kinds = [task.kind for task in params.tasks.values() if task.kind in kind_names()]
    if params.evaluation.server is None or any(isinstance(get_kind(kind), AsksServers) for kind in kinds):
        return []
    asking = ", ".join(name for name in kind_names() if isinstance(get_kind(name), AsksServers))
    return [
        Mistake(("evaluation", "server"), f"no task is of a kind that a server can answer ({asking}); leave it out")
    ]


def _unmeasured_mistakes(params: Params) -> list[Mistake]:
    """List readers of all tasks' data if some tasks have none."""
    unmeasured = [name for name in params.tasks if name not in params.measured]
    if not unmeasured:
        return []
    if not params.measured:
        return [Mistake(("tasks",), f"all are {UNMEASURED}; give at least one a kind and data")]
    read = [name for name, each in INPUTS.items() if each.every_task and each.declared(params)]
    studies = params.studies
    studied = {
        "tasks": studies.tasks.methods,
        "continual": studies.continual.methods,
        "rank": studies.rank.fractions,
    }
    read += [f"studies.{part}" for part, some in studied.items() if some]
    place, reason = ("tasks", unmeasured[0], "kind"), f"a task that is {UNMEASURED} has no data"
    return [Mistake(place, f"{reason}, which {section} reads; leave one of them out") for section in read]


def vocabulary_mistakes(params: Params) -> Iterator[Mistake]:
    """Check vocabularies, their models, and the places that name them."""
    name = params.vocabulary
    if name is not None and name not in params.vocabularies:
        text = f"no {name!r} under vocabularies{did_you_mean(name, params.vocabularies)}"
        yield Mistake(("base", "source"), text)
    for name, about in params.vocabularies.items():
        if name != params.vocabulary:
            yield Mistake(("vocabularies", name), f"nothing reads it; write base.source: {VOCABULARIES / name}")
        try:
            own = [] if Path(about.source) == OWN_MODELS else [BASE]
            check_model_names(choice_of(params, name), [*own, *params.tasks])
        except InputError as error:
            yield from mistakes_at(("vocabularies", name), error, has_place=True)


def choice_of(params: Params, name: str) -> TokenizerChoice:
    """Return a vocabulary as a choice of the merge's tokenizer."""
    about = params.vocabularies[name]
    return TokenizerChoice(about.tokenizer, about.rows, about.chat_template, section=f"vocabularies.{name}")


def kind_mistakes(where: KeyPath, task: Task | Unseen, family: str) -> list[Mistake]:
    """List the mistakes in a task's kind and its keys, each with its place."""
    try:
        kind = get_kind(task.kind)
    except InputError as error:
        return mistakes_at((*where, "kind"), error)
    mistakes, said = [], "kind" in task.model_fields_set
    if family in family_names() and not fits(kind, family):
        kinds = [name for name in kind_names() if name != UNMEASURED]
        fitting = ", ".join(name for name in kinds if fits(get_kind(name), family)) or "none"
        reason = f"the family {family} does not support the kind of task {task.kind}; it supports {fitting}"
        if not said:  # nothing is known of the keys of a kind that is not named
            left_out = f"missing, and it does not follow from the data; {family} supports {fitting}: name one"
            return [Mistake((*where, "kind"), left_out)]
        mistakes.append(Mistake((*where, "kind"), f"{reason}: name another kind, or another base.family"))
    if task.data.metric is not None and task.data.metric not in kind.METRICS:
        known = f"{task.kind} has {', '.join(kind.METRICS)}{did_you_mean(task.data.metric, kind.METRICS)}"
        text = f"{task.data.metric!r} is not a metric of this kind of task; {known}"
        mistakes.append(Mistake((*where, "data", "metric"), text))
    return [*mistakes, *mistakes_in(task.data.values, kind.Settings, (*where, "data"), tuple(Data.model_fields))]


def group_mistakes(where: KeyPath, task: Task | Unseen, source: Path, pointer: Pointer | None) -> Iterator[Mistake]:
    """Report a pointer file and a task's keys that name a group's data sets differently."""
    wanted = task.data.values.get("group") or {}
    members = [member for member in repositories(pointer) if member]
    if set(wanted) != set(members):
        names = f"names {', '.join(members)}" if members else "names no group"
        text = f"has {', '.join(wanted) or 'nothing'}, and {source} {names}; name the same"
        yield Mistake((*where, "data", "group"), text)


def fits(kind: TaskKind, family: str) -> bool:
    """Tell whether a family's networks support a kind of task."""
    return all(has_ability(family, ability) for ability in kind.NEEDS)
