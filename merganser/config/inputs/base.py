"""The base class of inputs, with what is known of them before a stage runs, and checks that they share."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from merganser import registry
from merganser.config.mistakes import Mistake
from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.config.text import KeyPath
from merganser.errors import did_you_mean
from merganser.evaluation import GivesClasses, get_kind, kind_names
from merganser.methods import __path__ as places
from merganser.plugins import module_names
from merganser.registry import Described

if TYPE_CHECKING:
    from merganser.merging.method import Method


class Input:
    """Something that an entry reads: as `NAME`, or as `NAME/OF` where params.yaml declares it in a section NAME.

    `name`: of the section, and of the folder in `data/`. `validation`: its stage reads the tasks' validation data.
    `every_task`: its stage reads data of every task. `by_task`: it has a stage for each that is declared and each task.
    `says_values`: it has the values of the methods' parameters, and the entries that read it none.
    `not_of_subsets`: why a study of subsets of the tasks cannot read it, placed in the entry; `reads` and `method` in
    braces are the entry's.
    """

    name: str
    validation = False
    every_task = False
    by_task = False
    says_values = False
    not_of_subsets: Mistake | None = None

    def declared(self, params: Params) -> Mapping[str, Any]:
        """Return the entries in its section; empty for an input without a section."""
        return getattr(params, self.name, {})

    def is_read_by(self, method: Described) -> bool:
        """Tell whether a method needs this input."""
        return self.name in (method.reads, *method.needs)

    def fits(self, about: Mapping[str, Any], method: Described, of: str | None = None) -> bool:
        """Tell whether an entry of its section, with these keys, is an input for the method."""
        return True

    def of_by_default(self, about: Mapping[str, Any]) -> str | None:
        """Return the default `of` for a section's keys; None if it cannot be inferred."""
        return None

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """List the mistakes in its section, each with its place."""
        return iter(())

    def entries(self, params: Params) -> Iterator[tuple[KeyPath, Entry]]:
        """List the merges inside its stage, each with its place, as entries of `methods`."""
        return iter(())

    def reading_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check an entry that reads this input, or whose method needs it; places are inside its `reads`."""
        return iter(())

    def source_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check whether the method of an entry can take this input; places are inside its `reads`."""
        if entry.reads != method.reads:
            yield other_source(entry, method)

    def value_mistakes(
        self, params: Params, entry: Entry, method: "Method", values: Mapping[str, Any], counts: Collection[int]
    ) -> Iterator[Mistake]:
        """List the entry's values that this input cannot serve, each with its place in the entry.

        `values`: with defaults. `counts`: the numbers of tasks that are merged.
        """
        return iter(())

    def applied_by(self, one: Any) -> str | None:
        """Return the method that applies what was found on validation data; None if any method may."""
        return None


class OfAnother(Input):
    """An input that is of another, which its entries read with it.

    `needed`, `unused`: what a method does that needs it, and one that does not. `example`: the keys of one; `reads` and
    `method` in braces are the method's. `others`: what it may be of but difference vectors, as `expected` says.
    """

    needed: str
    unused: str
    expected: str
    others: tuple[str, ...] = ()
    example = "of: {reads}"

    def mistakes(self, params: Params) -> Iterator[Mistake]:
        """Check the `of` of each entry."""
        for name, one in self.declared(params).items():
            for mistake in of_mistakes(params, one.of, self.expected, *self.others):
                yield mistake.below((self.name, name, "of"))

    def reading_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check that entries of methods that need this input, and no others, read a declared one."""
        name, declared = entry.named(self.name), self.declared(params)
        if name is None and self.is_read_by(method):
            fitting = [each for each, one in declared.items() if self.fits(one.model_dump(), method, entry.reads)]
            of_merge = method.reads == "differences" or (method.learner and method.learner.of_merge)
            read = "differences/NAME" if of_merge else method.reads
            keys = self.example.format(reads=read, method=method.name)
            declare = f"declare {self.name}: {{NAME: {{{keys}}}}}, and read {self.name}/NAME"
            remedy = f"read {self.name}/{fitting[0]}" if fitting else declare
            needs = ((self.name, fitting[0]),) if fitting else ()
            yield Mistake((), f"{method.name} {self.needed}, got {entry.reads!r}; {remedy}", needs)
        elif name is not None and not self.is_read_by(method):
            yield Mistake((), f"{method.name} {self.unused}, got {entry.reads!r}; read {method.reads}")
        elif name is not None:
            yield from name_mistakes(self.name, declared, name, entry.reads)


def other_source(entry: Entry, method: "Method") -> Mistake:
    """Return a message with the input that a method reads, for an entry that reads another one."""
    own = "" if method.reads == "differences" else f"{method.reads}, or "
    joint = f"joints/NAME of side {method.joint}, or " if method.joint else ""
    reason = f"{method.name} decomposes nothing jointly: it" if entry.named("joints") else method.name
    return Mistake((), f"{reason} reads {own}{joint}differences/NAME, got {entry.reads!r}")


def name_mistakes(section: str, declared: Mapping[str, object], name: str, reads: str) -> Iterator[Mistake]:
    """Check that a section declares the name that an entry reads."""
    if name not in declared:
        there = f"there are {', '.join(declared)}" if declared else "there are none"
        text = f"no {name!r} under {section}, {there}, got {reads!r}{did_you_mean(name, declared)}"
        yield Mistake((), text, needs=((section, name),))


def of_mistakes(params: Params, of: str, expected: str, *others: str) -> Iterator[Mistake]:
    """Check an `of`: declared difference vectors, or one of the others, which `expected` describes."""
    name = difference_in(of)
    if name is not None:
        yield from name_mistakes("differences", params.differences, name, of)
    elif of not in others:
        yield Mistake((), f"{expected}, got {of!r}")


def without_classes(params: Params, what: str, remedy: str) -> Iterator[Mistake]:
    """List the tasks without classes, for a message about `what` needs them."""
    for name, task in params.tasks.items():
        if task.kind in kind_names() and not isinstance(get_kind(task.kind), GivesClasses):
            reason = f"{task.kind} has no classes, {what}"
            yield Mistake(("tasks", name, "kind"), f"{reason}; leave the task out, or {remedy}")


def difference_in(of: str) -> str | None:
    """Return the name of the difference vectors in an `of`; None if it is something else."""
    kind, _, name = of.partition("/")
    return name if kind == "differences" and name else None


def known_method(name: Any) -> "Method | None":
    """Return a method; None for an unknown name."""
    if name not in module_names(places):
        return None
    return registry.get(name)


def described_method(name: Any) -> "Described | None":
    """Return a method's description without importing its code; None if no method has this name."""
    if name not in module_names(places):
        return None
    return registry.describe(name)
