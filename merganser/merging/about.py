"""Descriptions of methods: paper, family, requirements and cost.

Importing it brings no torch: `merganser methods` and lists of comparisons need none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel

from merganser.errors import did_you_mean

if TYPE_CHECKING:
    from merganser.at_run_time import Section
    from merganser.inputs.layers import Side

Reads = Literal["deltas", "svd", "differences", "statistics"]
Family = Literal[
    "references",
    "arithmetic",
    "spherical",
    "sparse",
    "spectral",
    "joint",
    "statistics",
    "compressed",
    "masked",
    "learned",
    "routed",
]
Cost = Literal["elementwise", "fourier transform", "svd", "joint svd", "linear system", "gradient steps"]
Involvement = Literal["NDI", "VDI", "TTA"]  # no data, validation data, test-time adaptation
Efficiency = Literal["High", "Medium", "Low"]
CHOICES = {"family": Family, "involvement": Involvement, "efficiency": Efficiency, "reads": Reads, "cost": Cost}
REGISTERED: dict[str, Any] = {}  # each `Method` that was imported, by its name


@dataclass(frozen=True, kw_only=True)
class About:
    """A method's description, for its readers. Nothing here changes a merge."""

    family: Family
    formula: str  # the merged delta (task t's, for a method with parts per task) in LaTeX, for the docs
    paper: str
    law: str  # what must hold whatever the models are; a test of the method asserts it
    involvement: Involvement = "NDI"  # of data; with the efficiency, the classes of the survey of merging
    efficiency: Efficiency | None = None  # None: low where values are learned, else as its cost
    ours: Collection[str] = ()  # parameters whose default comes from no paper
    searched: Mapping[str, Sequence[float]] | None = None  # values that its paper or authors try, in all combinations
    own: Collection[str] = ()  # searched ones whose value for a task changes no other task's model: each takes its best


@dataclass(frozen=True, kw_only=True)
class Description(About):
    """A method as its file's text describes it; `Method` has the same and more."""

    name: str
    doc: str
    reads: Reads
    cost: Cost
    statistics: tuple[str, ...] = ()
    joint: "Side | None" = None
    trained: "Section | None" = None
    overlay: bool  # stores parts per task
    at_run_time: bool  # has what is put into a network at evaluation
    one_model: bool
    needs: list[str]
    parameters: type[BaseModel]

    @property
    def summary(self) -> str:
        """Return what it does, in one sentence."""
        return first_paragraph(self.doc)


def first_paragraph(doc: str) -> str:
    """Return the first paragraph of a docstring, as one line."""
    return " ".join(doc.split("\n\n")[0].split())


def choice_mistake(facts: Mapping[str, Any]) -> str | None:
    """Name the first declared value that is not allowed, and those that are; None where all are allowed."""
    for key, choices in CHOICES.items():
        known, value = get_args(choices), facts[key]
        if value is not None and value not in known:
            return f"{key}: expected {', '.join(known)}, got {value!r}{did_you_mean(str(value), known)}"
    return None


def follows(facts: Mapping[str, Any], named: Collection[str]) -> dict[str, Any]:
    """Return the properties that follow from a method's declaration.

    `facts`: the declared values. `named`: the type names in its function's signature.
    """
    given = facts.get
    overlay = "Parts" in named
    reads = given("reads") or ("statistics" if given("statistics") else "svd" if "LayerFactors" in named else "deltas")
    cost = given("cost") or ("joint svd" if given("joint") else "svd" if reads == "svd" else "elementwise")
    by_cost = "High" if cost == "elementwise" else "Medium"
    return {
        "reads": reads,
        "overlay": overlay,
        "cost": cost,
        "efficiency": given("efficiency") or ("Low" if given("learner") else by_cost),
        "weighted": given("weighted", True) and not overlay and not given("learner"),
    }


def needs_of(facts: Mapping[str, Any], trained: str | None) -> list[str]:
    """List the inputs that a method reads; `facts`: its declaration with the properties that follow from it."""
    statistics = facts.get("statistics", ())
    reads = ["deltas", *statistics] if facts["reads"] == "statistics" else [facts["reads"]]
    return [*reads, *(more for key, more in MORE.items() if facts.get(key)), *filter(None, [trained])]


MORE = {"embeddings": "embeddings", "learner": "learned"}  # declarations, and the inputs that these need
