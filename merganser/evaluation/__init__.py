"""Evaluation: kinds of task. Each checks its data, prepares a network's inputs, and scores the network's outputs.

A kind is a module of `merganser/evaluation/kinds/`, found by its file name; params.yaml names it as `kind` of a task.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from merganser.errors import InputError, did_you_mean
from merganser.evaluation import kinds
from merganser.plugins import KINDS, load, module_names

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
    """The functions that a kind's module has. `data.columns` renames a data set's columns to those of the kind.

    It may also define, as literals: `PRELOAD`, modules that processes import before they run stages; and `PIPELINE`,
    one of the `PIPELINES` of its families: then a new kind does not rerun stages of other families.
    """

    Settings: type[KindSettings]  # of the kind's own keys under `data:`
    METRICS: Sequence[str]  # the first is the default
    NEEDS: Sequence[type]  # abilities of a network: protocols of merganser/models/__init__.py
    TOKENS: int | None  # of an example, all its answers together, for estimates; None for those of a picture

    def check_data(self, splits: Mapping[str, Any], settings: Any, source: Path) -> None:
        """Refuse a data set of another kind; raise InputError naming the split and the column.

        Before a run it is called with splits that have columns but no rows.
        """

    def columns(self, settings: Any) -> Collection[str] | None:
        """Name the columns that are read, even if a data set lacks them; others are not decoded. None for all."""

    def classes(self, features: Mapping[str, Any], settings: Any) -> list[str]:
        """Name the classes in the labels' order, from a data set's features; empty for a kind without classes."""

    def prepare(self, rows: Any, settings: Any, network: "Network") -> "Iterator[Mapping[str, Tensor]]":
        """Yield arrays by name, one row per example, a few examples at a time, with everything that `results` reads.

        The network is built, has the abilities that `NEEDS` names, and no values.
        """

    def results(
        self, network: "Network", prepared: "Prepared", settings: Any, metric: str, batch_size: int
    ) -> "Results":
        """Run a loaded network on prepared data; return the result of each example."""


@runtime_checkable
class HasHead(Protocol):
    """The module of a kind whose networks have a head of the task's own."""

    def outputs(self, classes: Sequence[str], settings: Any) -> int:
        """Return the head's number of outputs, given the classes' names."""


@runtime_checkable
class ChecksMetric(Protocol):
    """The module of a kind with metrics that fit only some data and settings."""

    def check_metric(self, splits: Mapping[str, Any], settings: Any, metric: str, source: Path) -> None:
        """Refuse a metric that does not fit; raise InputError. Called after `check_data`, in the same way."""


@runtime_checkable
class GivesClasses(Protocol):
    """The module of a kind with one class per example, as anything that uses class probabilities needs."""

    def class_logits(
        self,
        network: "Network",
        prepared: "Prepared",
        settings: Any,
        parameters: "Mapping[str, Tensor]",
        rows: Sequence[int],
    ) -> "Tensor":
        """Return the class logits (B, C) of examples with these parameters instead of the loaded ones; differentiable.

        `parameters` have the checkpoint's names, and may include a classifier's own head.
        """


@runtime_checkable
class HasGroups(Protocol):
    """The module of a kind whose data may be a group of data sets."""

    def members(self, prepared: "Prepared", settings: Any) -> list[str]:
        """Name each prepared example's data set; empty if the data are no group."""


@runtime_checkable
class ShowsExamples(Protocol):
    """The module of a kind that may show a network examples of another split before each question."""

    def shown_split(self, settings: Any) -> str | None:
        """Name that split; None if nothing is shown."""

    def write_shown(self, rows: Any, settings: Any, folder: Path) -> None:
        """Write the shown examples into the folder of prepared data."""


@runtime_checkable
class AsksServers(Protocol):
    """The module of a kind that a server of completions can score (`evaluation.server`)."""

    def served_results(
        self,
        server: "ModelServer",
        folder: Path,
        prepared: "Prepared",
        settings: Any,
        metric: str,
        batch_size: int,
    ) -> "Results":
        """Ask the server of a model's folder; return the result of each example."""


def kind_names() -> list[str]:
    """List the kinds of task, by their files."""
    return module_names(kinds.__path__)


def get_kind(name: str) -> TaskKind:
    """Return a kind's module; raise InputError with the nearest name if there is none."""
    if name not in kind_names():
        near = did_you_mean(name, kind_names())
        raise InputError(f"{name!r} is not a kind of task; known: {', '.join(kind_names())}{near}")
    kind: TaskKind = load(KINDS, name, TaskKind)
    return kind
