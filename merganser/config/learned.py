"""Check the entries of `learned` of a `params.yaml` against the learners they name, and the entries that read them."""

from collections.abc import Iterator

from pydantic import ValidationError

from merganser.config.explaining import explain
from merganser.config.params import Entry, Learned, Params
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import GivesClasses, get_kind, kind_names
from merganser.learning import RoutesBlocks, get_learner
from merganser.merging.method import Method
from merganser.models import HasBlocks, families_with, has_ability


def learned_mistakes(params: Params) -> Iterator[str]:
    """List the mistakes of what is learned, each with its place."""
    for name, learned in params.learned.items():
        yield from _learner_mistakes(params, f"learned.{name}", learned)
    if params.learned:
        for name, task in params.tasks.items():
            if task.kind in kind_names() and not isinstance(get_kind(task.kind), GivesClasses):
                reason = f"{task.kind} is no kind with classes, whose probabilities learned.* look at"
                yield f"tasks.{name}.kind: {reason}; leave the task out, or learned"


def reading_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[str]:
    """Check that a method that applies learned values, and no other, reads values of the learner of its name."""
    if entry.learned is None and method.learned:
        fitting = [name for name, learned in params.learned.items() if learned.learner == method.name]
        declare = f"declare learned: {{NAME: {{learner: {method.name}, of: {method.reads}}}}}, and read learned/NAME"
        remedy = f"read learned/{fitting[0]}" if fitting else declare
        yield f"{method.name} applies learned values, got {entry.reads!r}; {remedy}"
    elif entry.learned is not None and not method.learned:
        yield f"{method.name} applies no learned values, got {entry.reads!r}; read {method.reads}"
    elif entry.learned is not None and entry.learned not in params.learned:
        there = f"there are {', '.join(params.learned)}" if params.learned else "there are none"
        near = did_you_mean(entry.learned, params.learned)
        yield f"no {entry.learned!r} under learned, {there}, got {entry.reads!r}{near}"
    elif entry.learned is not None and params.learned[entry.learned].learner != method.name:
        learner = params.learned[entry.learned].learner
        yield f"{entry.reads} is learned by {learner}, which the method {method.name} does not apply; name {learner}"


def _learner_mistakes(params: Params, where: str, learned: Learned) -> Iterator[str]:
    try:
        learner = get_learner(learned.learner)
    except InputError as error:
        yield f"{where}.learner: {error}"
        return
    if isinstance(learner, RoutesBlocks) and not has_ability(params.base.family, HasBlocks):
        reason = f"{learned.learner} mixes the MLPs of blocks, which {params.base.family} does not name"
        yield f"{where}.learner: {reason}; the families that do are {', '.join(families_with(HasBlocks))}"
    source, _, difference = learned.of.partition("/")
    if source == "differences" and difference:
        if difference not in params.differences:
            near = did_you_mean(difference, params.differences)
            yield f"{where}.of: no {difference!r} under differences, got {learned.of!r}{near}"
    elif learned.of != learner.READS:
        yield f"{where}.of: {learned.learner} reads {learner.READS}, or differences/NAME, got {learned.of!r}"
    try:
        learner.Settings.model_validate(learned.values)
    except ValidationError as error:
        for mistake in error.errors():
            yield explain(mistake, learner.Settings, tuple(where.split(".")), tuple(Learned.model_fields))
