"""Deltas, and the inputs that can replace them: factors, joint decompositions, difference vectors."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from merganser.config.inputs.base import Input, known_method, name_mistakes, other_source
from merganser.config.mistakes import Mistake
from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.errors import did_you_mean

if TYPE_CHECKING:
    from merganser.merging.method import Method


ROUNDING = 1e-9


class DeltasInput(Input):
    """The tasks' models minus the base."""

    name = "deltas"


class FactorsInput(Input):
    """The singular triples of each task's matrices."""

    name = "svd"

    def value_mistakes(
        self, params: Params, entry: Entry, method: "Method", values: Mapping[str, Any], counts: Collection[int]
    ) -> Iterator[Mistake]:
        """Check that enough singular triples are stored for a merge."""
        for count in counts:
            needed, kept = method.share_needed(count, values), params.decompose.rank_fraction
            if entry.reads == self.name and needed is not None and needed > kept + ROUNDING:
                reason = f"needs the first {needed:g} of each spectrum for {count} tasks"
                yield Mistake((), f"{reason}, decompose.rank_fraction is {kept:g}; raise it")
                return


class JointsInput(Input):
    """The decompositions of all tasks' matrices together, with the deltas."""

    name = "joints"
    not_of_subsets = Mistake(("reads",), "{reads} decomposes all tasks' matrices, not a subset's; read deltas")

    def source_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check that the joint decomposition exists and is the one that the method starts with."""
        name = entry.named(self.name)
        if name is None or method.joint is None:
            yield other_source(entry, method)
            return
        yield from name_mistakes(self.name, params.joints, name, entry.reads)
        if name in params.joints and params.joints[name].side != method.joint:
            fitting = [other for other, joint in params.joints.items() if joint.side == method.joint]
            remedy = f"read joints/{fitting[0]}" if fitting else f"declare one under joints with side: {method.joint}"
            reason = f"{method.name} decomposes {method.joint}, joints.{name} is of {params.joints[name].side}"
            yield Mistake((), f"{reason}; {remedy}", needs=((self.name, name, "side"),))

    def value_mistakes(
        self, params: Params, entry: Entry, method: "Method", values: Mapping[str, Any], counts: Collection[int]
    ) -> Iterator[Mistake]:
        """Check that a merge decomposes unweighted deltas."""
        from merganser.merging.binding import variants  # imports torch

        for variant in variants(values):
            weighs = "coefficients change" if variant.get("coefficients") is not None else None
            weighs = weighs or ("a scaling by task changes" if isinstance(variant.get("scaling"), Mapping) else None)
            if entry.named(self.name) and weighs:
                reason = f"{weighs} the matrices before they are decomposed, so {entry.reads} cannot be used"
                yield Mistake(("reads",), f"{reason}; read deltas")
                return


class DifferencesInput(Input):
    """The tasks' models minus an entry's merge."""

    name = "differences"
    by_task = True
    not_of_subsets = Mistake(
        ("reads",),
        "difference vectors start from a merge of all tasks, so a subset's would hold the other tasks too; "
        "study a method that reads deltas or svd",
    )

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """Check their start: an entry that gives one model and does not itself read difference vectors."""
        for name, difference in params.differences.items():
            where, merged = ("differences", name, "merged"), difference.merged
            if merged not in params.methods:
                yield Mistake(where, f"no entry {merged!r} under methods{did_you_mean(merged, params.methods)}")
                continue
            entry = params.methods[merged]
            read = params.inner(entry) if entry.named("searches") else entry
            if read.difference is not None:
                reason = f"the entry {merged} reads difference vectors itself"
                yield Mistake(where, f"{reason}; name one that reads deltas or svd")
            elif (method := known_method(entry.method)) and not method.one_model:
                reason = f"the entry {merged} keeps a part per task"
                yield Mistake(where, f"{reason}; name one that gives one model for all tasks")

    def source_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check that they are declared; every method can read them."""
        if entry.difference is None:
            yield other_source(entry, method)
        else:
            yield from name_mistakes(self.name, params.differences, entry.difference, entry.reads)
