"""The entries that studies merge all tasks by: those of a sweep, one a value."""

from collections.abc import Iterator

from merganser.config.params import Entry, Params, Sweep
from merganser.studies.candidates import grid


def variants_of(study: Sweep) -> list[Entry]:
    """List the entries that a study merges by, in the order of the file."""
    return [study.at(values) for values in grid(study.over)]


def studied_entries(params: Params) -> Iterator[tuple[str, Entry]]:
    """List the entries of all studies, each with its place in the file."""
    for name, entry in params.studies.tasks.methods.items():
        yield f"studies.tasks.methods.{name}", entry
    for name, sweep in params.studies.sweeps.items():
        for variant in variants_of(sweep):
            yield f"studies.sweeps.{name}", variant
