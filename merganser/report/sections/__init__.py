"""The sections of the report: each a module found by its name, with a `SECTION`, and `NAME.html.j2`, its template."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from merganser.plugins import module_names
from merganser.report.comparison import Comparison
from merganser.report.tables import Tables
from merganser.report.wording import Wording

Data = TypeVar("Data")

# In full, as the names below: a string of a stage's code that names a module, or a package with its templates, puts it
# into the digest of that code.
PACKAGE = "merganser.report.sections"
# On the page from its top; any other section stands after these.
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


def _itself(comparison: Comparison) -> Any:
    return comparison


@dataclass(frozen=True, kw_only=True)
class Section(Generic[Data]):
    """A section of the report: functions of what `read` returns. `plots` runs inside `matplotlib.rc_context(STYLE)`.

    The template has `params`, `rows`, `wording` and `plots`, what was read under the section's name, and what `page`
    returns.
    """

    read: Callable[[Comparison], Data | None] = _itself  # None: the comparison has no such section
    tables: Callable[[Data], Tables] = lambda data: {}  # by their names in the report's folder
    plots: Callable[[Data, Wording], Mapping[str, str]] = lambda data, wording: {}  # SVG text by name
    page: Callable[[Data], Mapping[str, Any] | None] = lambda data: {}  # None: it has tables and plots alone
    inside: str | None = None  # the section whose template places this one, from its list `inside`
    template: str | None = None  # its text, if it has no file


def sections() -> dict[str, Section[Any]]:
    """Return the sections by their names, in the order of the page."""
    names = [f"{PACKAGE}.{name}" for name in module_names(__path__)]
    places = {name: place for place, name in enumerate(ORDER)}
    ordered = sorted(names, key=lambda name: places.get(name, len(places)))
    return {name.rpartition(".")[2]: import_module(name).SECTION for name in ordered}
