"""Values that a learner finds on the tasks' validation data, beside what they are of."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser.config.explaining import mistakes_in
from merganser.config.inputs.base import OfAnother, known_method, of_mistakes, without_classes
from merganser.config.params import Entry, LearnedEntry, Params
from merganser.errors import InputError
from merganser.merging.method import Method


class LearnedValuesInput(OfAnother):
    """What the methods apply that are named as a learner is."""

    name = "learned"
    validation = True
    every_task = True
    not_of_subsets = ".reads: {reads} was learned of all tasks, not a subset's; take the entry out"
    example = "learner: {method}, of: {reads}"
    needed, unused = "applies learned values", "applies no learned values"

    def fits(self, about: Mapping[str, Any], method: Method, of: str | None = None) -> bool:
        """Tell whether the method's own learner finds them."""
        return about.get("learner") == method.name

    def of_by_default(self, about: Mapping[str, Any]) -> str | None:
        """Return what the learner reads."""
        from merganser import registry  # imports torch

        learner = about.get("learner")
        return registry.get(learner).reads if learner in registry.names() else None

    def applied_by(self, one: Any) -> str | None:
        """Return the method of the learner's name."""
        return str(one.learner)

    def mistakes(self, params: Params) -> Iterator[str]:
        """Check each against the learner that it names, and that all tasks have classes."""
        for name, learned in params.learned.items():
            yield from _learner_mistakes(params, f"learned.{name}", learned)
        if params.learned:
            yield from without_classes(params, "whose probabilities learned.* need", "learned")

    def reading_mistakes(self, params: Params, entry: Entry, method: Method) -> Iterator[str]:
        """Check that the values are those of the method's own learner too."""
        yield from super().reading_mistakes(params, entry, method)
        found = params.learned.get(entry.named(self.name) or "")
        if found is not None and method.learner and known_method(found.learner) and found.learner != method.name:
            reason = f"which the method {method.name} does not apply"
            yield f"{entry.reads} is learned by {found.learner}, {reason}; name {found.learner}"


def _learner_mistakes(params: Params, where: str, learned: LearnedEntry) -> Iterator[str]:
    from merganser import registry  # imports torch, as the next does
    from merganser.models import families_with, has_ability
    from merganser.models.linear_maps import WithBlocks

    try:
        learner, reads = registry.get_learner(learned.learner), registry.get(learned.learner).reads
    except InputError as error:
        yield f"{where}.learner: {error}"
        return
    if learner.routers and not has_ability(params.base.family, WithBlocks):
        reason = f"{learned.learner} mixes the MLPs of blocks, which {params.base.family} does not name"
        yield f"{where}.learner: {reason}; the families that do are {', '.join(families_with(WithBlocks))}"
    for mistake in of_mistakes(params, learned.of, f"{learned.learner} reads {reads}, or differences/NAME", reads):
        yield f"{where}.of: {mistake}"
    yield from mistakes_in(learned.values, learner.settings, tuple(where.split(".")), tuple(LearnedEntry.model_fields))
