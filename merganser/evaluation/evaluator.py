"""The evaluation of one task."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import (
    AsksServers,
    ChecksMetric,
    GivesClasses,
    HasGroups,
    HasHead,
    ShowsExamples,
    TaskKind,
    get_kind,
)
from merganser.evaluation.columns import labelled, plain
from merganser.evaluation.data_sets import features_of, open_split
from merganser.evaluation.examples import Results
from merganser.evaluation.metrics import METRICS
from merganser.evaluation.prepared import Prepared, write_prepared
from merganser.evaluation.serving import ModelServer
from merganser.models import Network

UNNAMED = re.compile(r"LABEL_\d+")  # what transformers calls outputs that were given no names


@dataclass(frozen=True)
class Evaluator:
    """A task's kind, the kind's settings, and the metric."""

    name: str
    settings: Any
    metric: str

    @property
    def kind(self) -> TaskKind:
        """Return the kind's module."""
        return get_kind(self.name)

    def check_data(self, splits: Mapping[str, Any], source: Path) -> None:
        """Refuse a data set of another kind, or that does not fit the metric."""
        self.kind.check_data(splits, self.settings, source)
        if isinstance(self.kind, ChecksMetric):
            self.kind.check_metric(splits, self.settings, self.metric, source)
        wanted = METRICS[self.metric].classes if self.metric in METRICS else None
        for split, rows in splits.items():
            count = len(self.kind.classes(rows.features, self.settings))
            if wanted is not None and count not in (0, wanted):  # none: answers in words, which have labels or not
                has = f"split {split} of {source} has {count} classes"
                raise InputError(f"data.metric: {self.metric} needs {wanted} classes; {has}: choose another metric")

    def classes(self, data: Path) -> list[str]:
        """Name the classes of a saved data set."""
        return self.kind.classes(features_of(data), self.settings)

    def outputs(self, classes: Sequence[str]) -> int | None:
        """Return the number of outputs of the task's own head; None without a head, as `open_network` takes it."""
        return self.kind.outputs(classes, self.settings) if isinstance(self.kind, HasHead) else None

    def check_head(self, head: Sequence[str], classes: Sequence[str], where: str) -> None:
        """Refuse a head whose named outputs are not the data's classes; `where`: the task's place."""
        if head and classes and self.outputs(classes) is not None:
            check_head(head, classes, getattr(self.settings, "masked", ()), where)

    def prepare(
        self,
        data: Path,
        split: str,
        network: Network,
        out: Path,
        where: str = "evaluation.split",
        examples: int | None = None,
    ) -> tuple[int, int]:
        """Prepare one split of a saved data set into an empty folder.

        Returns the number of examples, and of those left out because they have no label. `examples`: at most so
        many, each class with its share.
        """
        whole = open_split(data, split, where, self.kind.columns(self.settings))
        rows = labelled(whole) if getattr(self.settings, "unlabelled", None) == "drop" else whole
        if not len(rows):
            raise InputError(f"{where}: no example of {split} has a label; name another split")
        dropped = len(whole) - len(rows)
        if examples is not None and examples < len(rows):
            rows = rows.select(spread_rows(rows, examples))
        chunks = self.kind.prepare(rows, self.settings, network)
        settings = self.settings.model_dump()
        about = {"kind": self.name, "settings": settings, "metric": self.metric, "classes": self.classes(data)}
        try:
            count = write_prepared(out, chunks, about)
        except InputError as error:
            raise InputError(f"{data}: split {split}: {error}") from None
        self._write_shown(data, split, out)
        return count, dropped

    def _write_shown(self, data: Path, split: str, out: Path) -> None:
        kind = self.kind
        if not isinstance(kind, ShowsExamples) or (shown := kind.shown_split(self.settings)) is None:
            return
        if shown == split:
            raise InputError(f"data.fewshot_split: {shown!r} is the split that is measured on; name another")
        rows = open_split(data, shown, "data.fewshot_split", self.kind.columns(self.settings))
        kind.write_shown(rows, self.settings, out)

    def results(self, network: Network, prepared: Prepared, batch_size: int) -> Results:
        """Run a loaded network on prepared data; raise InputError if the kind leaves examples out."""
        results = self.kind.results(network, prepared, self.settings, self.metric, batch_size)
        if len(results) != len(prepared):
            raise InputError(f"{self.name}: its module gives {len(results)} results of {len(prepared)} examples")
        return results

    def served_results(self, server: ModelServer, folder: Path, prepared: Prepared, batch_size: int) -> Results:
        """Score the prepared data by the server of a model's folder."""
        assert isinstance(self.kind, AsksServers), "params.yaml was checked"
        return self.kind.served_results(server, folder, prepared, self.settings, self.metric, batch_size)

    def members(self, prepared: Prepared) -> list[str]:
        """Name each prepared example's data set in a group; empty if the data are no group."""
        return self.kind.members(prepared, self.settings) if isinstance(self.kind, HasGroups) else []

    def class_logits(
        self, network: Network, prepared: Prepared, parameters: Mapping[str, Tensor], rows: Sequence[int]
    ) -> Tensor:
        """Return the class logits (B, C) of some prepared examples, differentiable in the parameters.

        Raises InputError for a kind without classes.
        """
        if not isinstance(self.kind, GivesClasses):
            raise InputError(f"{self.name}: this kind has no classes, and class probabilities are needed")
        return self.kind.class_logits(network, prepared, self.settings, parameters, rows)


def check_head(head: Sequence[str], classes: Sequence[str], masked: Collection[int], where: str) -> None:
    """Refuse a head whose number, names or order of outputs differ from the classes.

    `head`: the names of its outputs; `masked`: the numbers of those that are no class. Case and word separators do
    not matter; of a head without names only the number counts.
    """
    kept = [name for number, name in enumerate(head) if number not in masked]
    if len(kept) != len(classes):
        left = f" without {len(head) - len(kept)} masked" if masked else ""
        has = f"the head has {len(head)} outputs{left}"
        remedy = "set data.masked" if len(kept) > len(classes) else "name another model, or the data it was trained for"
        raise InputError(f"{where}: {has}, the data {len(classes)} classes ({', '.join(classes)}); {remedy}")
    if all(UNNAMED.fullmatch(name) for name in kept):
        return
    if [plain(name) for name in kept] != [plain(name) for name in classes]:
        same = sorted(map(plain, kept)) == sorted(map(plain, classes))
        advice = "reorder the labels of the data" if same else "if they mean the same, give data.classes the head's"
        how = "in another order" if same else "other classes"
        raise InputError(f"{where}: the head has {how}: {', '.join(kept)}; the data has {', '.join(classes)}; {advice}")


def spread_rows(rows: Any, count: int) -> list[int]:
    """Choose so many rows of a split, in order: evenly spaced, or each label's share if there are labels."""
    labels = list(rows["label"]) if "label" in rows.column_names else [0] * len(rows)
    several = [label if isinstance(label, list) else [label] for label in labels]
    order = sorted(range(len(labels)), key=lambda row: [(each is None, each) for each in several[row]])
    return sorted(order[number * len(order) // count] for number in range(count))


def open_evaluator(kind: str, own: Mapping[str, Any], metric: str | None) -> Evaluator:
    """Bind a kind to its settings, which were checked when params.yaml was loaded, and to a metric or its first one."""
    module = get_kind(kind)
    return Evaluator(kind, module.Settings.model_validate(dict(own)), metric or module.METRICS[0])


def evaluator_for(prepared: Prepared) -> Evaluator:
    """Return the evaluator of a prepared task."""
    about = prepared.about
    return open_evaluator(about["kind"], about["settings"], about["metric"])
