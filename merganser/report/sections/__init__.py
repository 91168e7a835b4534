"""The sections of the report: what each reads, its tables and its plots are a module here, its template is beside it.

A module `NAME.py` has `SECTION`, and its template is `NAME.html.j2`. It is found by its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from merganser.plugins import module_names
from merganser.report.comparison import Comparison

PACKAGE = "merganser.report.sections"  # in full: so its templates are part of the digest of what uses them
# On the page, from its top; any other section stands after these. In full: the digest of a stage has the modules that
# a string of its code names.
ORDER = (
    "merganser.report.sections.take",
    "merganser.report.sections.changes",
    "merganser.report.sections.scores",
    "merganser.report.sections.routed",
    "merganser.report.sections.unseen",
    "merganser.report.sections.searches",
    "merganser.report.sections.published",
    "merganser.report.sections.glance",
    "merganser.report.sections.confusions",
    "merganser.report.sections.between_tasks",
    "merganser.report.sections.depth",
    "merganser.report.sections.retained",
    "merganser.report.sections.bounds",
    "merganser.report.sections.studies",
    "merganser.report.sections.study_tasks",
    "merganser.report.sections.study_rank",
    "merganser.report.sections.study_sweeps",
    "merganser.report.sections.study_ablations",
    "merganser.report.sections.study_budgets",
    "merganser.report.sections.explanations",
    "merganser.report.sections.entries",
    "merganser.report.sections.origin",
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the report, as functions of the comparison; each may be left out.

    `tables` writes files into the report's folder. `plots` draws inside `matplotlib.rc_context(STYLE)`, and returns SVG
    text by name. `page` returns variables of the template; None: the comparison has nothing to show here.
    """

    tables: Callable[[Path, Comparison], None] = lambda folder, comparison: None
    plots: Callable[[Comparison], Mapping[str, str]] = lambda comparison: {}
    page: Callable[[Comparison], Mapping[str, Any] | None] = lambda comparison: {}
    inside: str | None = None  # the section whose template places this one, from its list `inside`
    template: str | None = None  # the template itself, where it is no file


def sections() -> dict[str, Section]:
    """Return the sections by their names, in the order of the page."""
    names = [f"{PACKAGE}.{name}" for name in module_names(__path__)]
    places = {name: place for place, name in enumerate(ORDER)}
    ordered = sorted(names, key=lambda name: places.get(name, len(places)))
    return {name.rpartition(".")[2]: import_module(name).SECTION for name in ordered}
