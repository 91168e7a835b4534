"""Check what is trained beside a merged model of a `params.yaml`, and the entries that read it."""

from collections.abc import Iterator, Mapping

from merganser.config.params import Beside, Entry, Params
from merganser.errors import did_you_mean
from merganser.merging.method import Method


def beside_mistakes(params: Params) -> Iterator[str]:
    """Check what each bottleneck and router is of: difference vectors that there are, or for a router deltas."""
    for section, declared in params.beside.items():
        for name, one in declared.items():
            if (section, one.of) != ("routers", "deltas"):
                yield from (f"{section}.{name}.of: {mistake}" for mistake in _of_mistakes(params, section, one))


def beside_reading_mistakes(params: Params, entry: Entry, method: Method) -> Iterator[str]:
    """Check that a method that needs something trained beside its merge, and no other, reads it."""
    found = next((section for section in params.beside if entry.named(section)), None)
    if method.beside is None and found is None:
        return
    if method.beside is None:
        yield f"{method.name} takes nothing of {found}, got {entry.reads!r}; read {method.reads}"
        return
    declared = params.beside[method.beside]
    name = entry.named(method.beside)
    if name is None:
        of = "deltas" if (method.beside, method.reads) == ("routers", "deltas") else "differences/NAME"
        declare = f"declare {method.beside}: {{NAME: {{of: {of}}}}}, and read {method.beside}/NAME"
        remedy = f"read {method.beside}/{next(iter(declared))}" if declared else declare
        yield f"{method.name} reads {method.beside}/NAME, got {entry.reads!r}; {remedy}"
    elif name not in declared:
        there = f"there are {', '.join(declared)}" if declared else "there are none"
        yield f"no {name!r} under {method.beside}, {there}, got {entry.reads!r}{did_you_mean(name, declared)}"


def _of_mistakes(params: Params, section: str, one: Beside) -> Iterator[str]:
    kind, _, name = one.of.partition("/")
    if kind != "differences" or not name:
        base = ", or deltas, whose start is the base" if section == "routers" else ""
        yield f"expected differences/NAME, whose start is the merged model{base}, got {one.of!r}"
    elif name not in params.differences:
        known: Mapping[str, object] = params.differences
        yield f"no {name!r} under differences, got {one.of!r}{did_you_mean(name, known)}"
