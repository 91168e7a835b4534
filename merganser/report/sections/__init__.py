"""The sections of the report: each a module found by its name, with a `SECTION`, and `NAME.html.j2`, its template."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from merganser.plugins import load, module_names
from merganser.report.comparison import Comparison
from merganser.report.formats import Tables, Wording

Data = TypeVar("Data")

# With its templates and its modules in the digest of the code that uses them: see merganser/code_digest.py.
PACKAGE, MODULES = "merganser.report.sections", "merganser.report.sections.*"
TASK_NUMBER = "task_number"  # a column of tables that DVC plots by task: it draws points over numbers only
# On the page from its top; any other section stands after these.
ORDER = (
    *("take", "changes", "scores", "routed", "unseen", "searches", "published", "glance", "confusions"),
    *("between_tasks", "depth", "retained", "bounds"),
    *("studies", "study_tasks", "study_continual", "study_rank", "study_sweeps", "study_ablations", "study_budgets"),
    *("explanations", "entries", "origin"),
)


def _itself(comparison: Comparison) -> Any:
    return comparison


@dataclass(frozen=True, kw_only=True)
class Section(Generic[Data]):
    """A section of the report: functions of the result of `read`. `plots` runs inside `plot_style()`.

    The template gets `params`, `rows`, `wording`, `plots`, the result of `read` under the section's name, and that
    of `page`.
    """

    read: Callable[[Comparison], Data | None] = _itself  # None: the comparison has no such section
    tables: Callable[[Data], Tables] = lambda data: {}  # by their names in the report's folder
    without: Tables = field(default_factory=dict)  # in their place where there is no such section: what dvc.yaml plots
    plots: Callable[[Data, Wording], Mapping[str, str]] = lambda data, wording: {}  # SVG text by name
    page: Callable[[Data], Mapping[str, Any] | None] = lambda data: {}  # None: it has tables and plots alone
    numbers: Callable[[Data | None], Any] | None = None  # of a study, for studies.json unless None
    inside: str | None = None  # the section whose template places this one, from its list `inside`
    template: str | None = None  # its text, if it has no file


class SectionModule(Protocol):
    """What the module of a section holds."""

    SECTION: Section[Any]


def sections() -> dict[str, Section[Any]]:
    """Return the sections by name, in the order of the page."""
    places = {name: place for place, name in enumerate(ORDER)}
    names = sorted(module_names(__path__), key=lambda name: places.get(name, len(places)))
    return {name: load("report.sections", name, SectionModule).SECTION for name in names}
