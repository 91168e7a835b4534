"""Evaluation: kinds of task, each of which checks its data, prepares a network's inputs and sets what comes out
against the labels.

A kind is a module of `merganser/evaluation/kinds/`, found by its file name; params.yaml names it as `kind` of a task.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from merganser.errors import InputError, did_you_mean
from merganser.evaluation import kinds
from merganser.plugins import module_names

if TYPE_CHECKING:  # this module is part of all that lies beside it, which need not depend on each other
    from torch import Tensor

    from merganser.evaluation.examples import Results
    from merganser.evaluation.prepared import Prepared
    from merganser.evaluation.serving import ModelServer
    from merganser.models import Network


Text = Annotated[str, Field(min_length=1)]


def _distinct(names: list[str]) -> list[str]:
    stripped = [name.strip() for name in names]
    if twice := [name for name in stripped if stripped.count(name) > 1]:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return names


Names = Annotated[list[Text], AfterValidator(_distinct)]  # of classes, by their labels


class KindSettings(BaseModel):
    """A kind's own keys under `data:`: exactly these, of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TaskKind(Protocol):
    """What the module of a kind holds. Its data has the columns that it names, renamed by `data.columns` at fetch.

    It may have `PRELOAD` too, written out: modules that processes import before they run stages.
    """

    Settings: type[KindSettings]  # of the kind's own keys under `data:`
    METRICS: Sequence[str]  # the first is the default
    NEEDS: Sequence[type]  # abilities of a network: protocols of merganser/models/__init__.py
    TOKENS: int | None  # of an example, all its answers together, for estimates; None for those of a picture

    def check_data(self, splits: Mapping[str, Any], settings: Any, source: Path) -> None:
        """Refuse a data set that is not of this kind; raise InputError naming the split and the column.

        It is called before any work too, when the splits have columns and no rows.
        """

    def columns(self, settings: Any) -> Collection[str] | None:
        """Name the columns that are read, whether a data set has them or not: no other is decoded; None for all."""

    def classes(self, features: Mapping[str, Any], settings: Any) -> list[str]:
        """Name the classes by their labels, from the features of a data set; none for a kind without classes."""

    def prepare(self, rows: Any, settings: Any, network: "Network") -> "Iterator[Mapping[str, Tensor]]":
        """Give arrays of one row an example by name, some examples at a time, all that `results` reads of the data.

        The network is built, has the abilities that `NEEDS` names, and no parameters.
        """

    def results(
        self, network: "Network", prepared: "Prepared", settings: Any, metric: str, batch_size: int
    ) -> "Results":
        """Run a loaded network on prepared data; return what it made of each example."""


@runtime_checkable
class HasHead(Protocol):
    """The module of a kind whose networks have a head of the task's own."""

    def outputs(self, classes: Sequence[str], settings: Any) -> int:
        """Return how many outputs the head has, given the classes' names."""


@runtime_checkable
class ChecksMetric(Protocol):
    """The module of a kind of which some metrics fit some data and settings alone."""

    def check_metric(self, splits: Mapping[str, Any], settings: Any, metric: str, source: Path) -> None:
        """Refuse a metric that does not fit; raise InputError. Called as `check_data` is, after it."""


@runtime_checkable
class GivesClasses(Protocol):
    """The module of a kind whose examples are of one class each: what looks at a network's probabilities needs it."""

    def class_logits(
        self,
        network: "Network",
        prepared: "Prepared",
        settings: Any,
        parameters: "Mapping[str, Tensor]",
        rows: Sequence[int],
    ) -> "Tensor":
        """Score the classes of some examples with these parameters in place of the loaded ones; differentiable: (B, C).

        `parameters` have the checkpoint's names; those of a classifier's own head may be among them.
        """


@runtime_checkable
class HasGroups(Protocol):
    """The module of a kind whose data may be a group of data sets."""

    def members(self, prepared: "Prepared", settings: Any) -> list[str]:
        """Name the data set that each prepared example is of; none where the data are no group."""


@runtime_checkable
class ShowsExamples(Protocol):
    """The module of a kind that may show a network examples of another split before each question."""

    def shown_split(self, settings: Any) -> str | None:
        """Name that split; None where nothing is shown."""

    def write_shown(self, rows: Any, settings: Any, folder: Path) -> None:
        """Write what is needed of that split into the folder of what was prepared."""


@runtime_checkable
class AsksServers(Protocol):
    """The module of a kind whose examples a server of completions can be asked (`evaluation.server`)."""

    def served_results(
        self,
        server: "ModelServer",
        folder: Path,
        prepared: "Prepared",
        settings: Any,
        metric: str,
        batch_size: int,
    ) -> "Results":
        """Ask the model that a server has of a folder; return what it made of each example."""


def kind_names() -> list[str]:
    """List the kinds of task, by their files."""
    return module_names(kinds.__path__)


def get_kind(name: str) -> TaskKind:
    """Return a kind's module; raise InputError with the nearest name when there is none of this one."""
    if name not in kind_names():
        near = did_you_mean(name, kind_names())
        raise InputError(f"{name!r} is not a kind of task; known: {', '.join(kind_names())}{near}")
    kind: TaskKind = import_module(f"{kinds.__name__}.{name}")
    return kind
