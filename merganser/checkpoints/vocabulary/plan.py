"""Choose a merge's tokens, and match each model's rows with them, before anything is written.

A model that lacks a token gets the reference's row, so that its delta is zero there. The reference's row is the base's;
for a token that the base lacks, it is the mean of the rows of all models that have it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.matching import matched
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import Checkpoint, tensor_name
from merganser.checkpoints.views import View
from merganser.checkpoints.vocabularies import Vocabulary, any_vocabulary_of, list_tokens, template_of
from merganser.checkpoints.vocabulary.rows import ABSENT, Key, arranged, axis_of, keys_of, row_numbers, rows_in
from merganser.errors import InputError, did_you_mean

BASE, UNION = "base", "union"
EVERYTHING = ParameterRules()
FLAGS = {"tokenizer": "--tokenizer", "rows": "--rows", "chat_template": "--chat-template"}


@dataclass(frozen=True)
class TokenizerChoice:
    """The source of a merge's tokenizer: `base`, `union` (the base's plus the tasks' tokens) or a task; None: the base.

    `rows`: by token, the model to take its rows from instead of the rule's. `chat_template`: its source, if not the
    tokenizer's.
    """

    tokenizer: str | None = None
    rows: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    section: str = ""  # of params.yaml, where it stands there

    def key(self, name: str) -> str:
        """Name a setting as a user wrote it: by its key in params.yaml, or by the command line's flag."""
        return f"{self.section}.{name}" if self.section else FLAGS[name]


@dataclass(frozen=True)
class Member:
    """A model, its tokens, and its own names of the reference's tables; for an adapter, of those that it changes."""

    name: str
    folder: Path
    model: Checkpoint | Adapter
    vocabulary: Vocabulary
    rows: int
    tables: Mapping[str, str]

    @cached_property
    def keys(self) -> list[Key]:
        """Return the key of each row."""
        return keys_of(self.vocabulary, self.rows)

    @property
    def tokens(self) -> set[Key]:
        """Return the tokens that have a row."""
        return {key for key in self.keys if isinstance(key, str)}

    def table(self, name: str, axis: int, lead: Tensor) -> Tensor:
        """Read the table with a reference's name, rows first; `lead`: the base's own, which an adapter changes."""
        own = self.tables.get(name)
        if own is None:
            return lead
        if not isinstance(self.model, Adapter):
            return self.model.read(own).movedim(axis, 0)
        whole = self.model.updates[own].whole
        weights = torch.zeros(self.model.tensors.spec(whole).shape) if whole else lead.movedim(0, axis)
        return (weights.to(torch.float32) + self.model.delta(own, weights)).movedim(axis, 0)


@dataclass(frozen=True)
class OneVocabulary:
    """The vocabulary of a merge, and the models to write in it.

    `lead`: the base, or without one the model whose names and files the merge has. `new`: the numbers of tokens
    added to the lead's.
    """

    choice: TokenizerChoice
    lead: Member
    tasks: Sequence[Member]
    keys: list[Key]
    new: Vocabulary

    @property
    def has_base(self) -> bool:
        """Tell whether the lead is a base, and not a task's model."""
        return self.lead.name == BASE

    @property
    def chosen(self) -> Member:
        """Return the model whose tokenizer the merge has, or extends."""
        return self._named(self.choice.tokenizer) or self.lead

    @property
    def template(self) -> Member:
        """Return the model with the merge's chat template."""
        return self._named(self.choice.chat_template) or self.chosen

    def _named(self, name: str | None) -> Member | None:
        return next((each for each in (self.lead, *self.tasks) if each.name == name), None)

    @cached_property
    def axes(self) -> dict[str, int]:
        """Return the dimension of the rows of each of the reference's tables."""
        return tables_of(self.lead.model, self.lead.rows) if isinstance(self.lead.model, Checkpoint) else {}

    def reference(self, name: str) -> Tensor:
        """Return the reference's rows of a table in the vocabulary's order; means are computed in float64."""
        assert isinstance(self.lead.model, Checkpoint)
        axis = self.axes[name]
        lead = self.lead.model.read(name).movedim(axis, 0)
        known = self._allowed(self.lead, self.keys) if self.has_base else torch.full((len(self.keys),), ABSENT)
        missing = (known == ABSENT).nonzero().flatten()
        wanted = [self.keys[row] for row in missing.tolist()]
        total = torch.zeros(len(missing), *lead.shape[1:], dtype=torch.float64)
        count = torch.zeros(len(missing), *[1] * (lead.dim() - 1), dtype=torch.float64)
        for task in self.tasks:
            rows = self._allowed(task, wanted)
            if (has := rows != ABSENT).any():
                total[has] += task.table(name, axis, lead)[rows[has]]
                count[has] += 1
        if not count.all():
            total = torch.where(count > 0, total, lead.mean(0))  # as transformers begins the row of a new token
        absent = torch.zeros(len(self.keys), *lead.shape[1:], dtype=lead.dtype)
        absent[missing] = (total / count.clamp(min=1)).to(lead.dtype)
        return arranged(lead, known, absent).movedim(0, axis).contiguous()

    def has_all(self, member: Member) -> bool:
        """Tell whether a model's tables already have the vocabulary's rows and order."""
        return not self.choice.rows and member.keys == self.keys

    def places(self, member: Member) -> Tensor:
        """Return the number of a model's row for each token of the vocabulary; `ABSENT` for the reference's."""
        return row_numbers(member.keys, self.keys, without=self.choice.rows)

    def _allowed(self, member: Member, wanted: Sequence[Key]) -> Tensor:
        """Return a model's rows for the wanted tokens, without those that a rule assigns to another model."""
        others = [token for token, name in self.choice.rows.items() if name != member.name]
        return row_numbers(member.keys, wanted, others)

    def notes(self) -> Iterator[str]:
        """Report how many tokens the merge has, which are lost, and which a model does not know."""
        known = {key for key in self.keys if isinstance(key, str)}
        yield f"tokenizer {self.choice.tokenizer}: {len(known)} tokens, in tables of {len(self.keys)} rows"
        for each in (*([self.lead] if self.has_base else []), *self.tasks):
            who = "the base" if each.name == BASE else each.name
            if lost := each.tokens - known:
                yield f"{who}: not among the merge's tokens: {list_tokens(key for key in each.keys if key in lost)}"
            if lacks := known - each.tokens:
                rows = "is the mean of those of models that have it" if each.name == BASE else "stays the base's for it"
                yield f"{who}: has no {list_tokens(key for key in self.keys if key in lacks)}: a row {rows}"
        yield from self._collisions()
        template = template_of(self.template.folder)
        for each in self.tasks:
            if template_of(each.folder) not in (None, template):
                yield f"{each.name}: its chat template is not that of the merge"

    def _collisions(self) -> Iterator[str]:
        """Name rows that stand for different tokens in two tasks and for none in the base, if both stay."""
        known, kept = self.lead.tokens, {*self.keys}
        for number, one in enumerate(self.tasks):
            for other in self.tasks[number + 1 :]:
                added = (one.tokens | other.tokens) - known
                pairs = enumerate(zip(one.keys, other.keys, strict=False))
                rows = [(row, pair) for row, pair in pairs if len(added & kept & {*pair}) == 2]
                if rows:
                    row, (ours, theirs) = rows[0]
                    more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
                    yield f"row {row} is {ours!r} in {one.name} and {theirs!r} in {other.name}{more}: kept apart"


def tables_of(model: Checkpoint, rows: int) -> dict[str, int]:
    """Find a model's tables with so many rows, and the dimension of the rows."""
    axes = {name: axis_of(name, model.spec(name), rows) for name in model.names}
    return {name: axis for name, axis in axes.items() if axis is not None}


def in_one_vocabulary(base: Path | None, models: Mapping[str, Path], choice: TokenizerChoice) -> OneVocabulary:
    """Plan the vocabulary for a choice of tokenizer, from configurations, tokenizers and headers alone.

    Raises InputError if a model has no supported tokenizer or tables, if tables do not fit, or if a name is unknown.
    """
    paths = ({BASE: base} if base else {}) | dict(models)
    check_model_names(choice, paths)
    check_template(choice, paths)
    lead_name, lead_path = (BASE, base) if base else min(models.items())
    lead = _lead(lead_name, lead_path)
    tasks = [_member(name, path, lead) for name, path in models.items()]
    new = _new(lead, tasks) if choice.tokenizer == UNION else {}
    chosen = next((each for each in tasks if each.name == choice.tokenizer), lead)
    numbers = [*new.values(), *(_without_row(lead, tasks) if choice.tokenizer == UNION else [])]
    rows = max([chosen.rows, *(number + 1 for number in numbers)])
    plan = OneVocabulary(choice, lead, tasks, keys_of({**chosen.vocabulary, **new}, rows), new)
    _check_rules(plan)
    return plan


def check_model_names(choice: TokenizerChoice, models: Collection[str]) -> None:
    """Refuse unknown names of models; `models`: the known ones, with the base."""
    named = [("tokenizer", choice.tokenizer), ("chat_template", choice.chat_template)]
    for key, name in [*named, *(("rows", name) for name in choice.rows.values())]:
        known = [*models, *([UNION] if key == "tokenizer" else [])]
        if name is not None and name not in known:
            reason = "there is no base" if name == BASE else f"there is no model {name!r}{did_you_mean(name, known)}"
            raise InputError(f"{choice.key(key)} {name}: {reason}; name one of {', '.join(known)}")
    if choice.rows and choice.tokenizer is None:
        raise InputError(f"{choice.key('rows')}: needs {choice.key('tokenizer')}: rows are matched by token then")


def check_template(choice: TokenizerChoice, models: Mapping[str, Path]) -> None:
    """Refuse the chat template of a model without one; `models`: with the base."""
    if choice.chat_template and template_of(models[choice.chat_template]) is None:
        raise InputError(f"{choice.key('chat_template')} {choice.chat_template}: that model has no chat template")


def _lead(name: str, path: Path) -> Member:
    model, rows, vocabulary = open_checkpoint(path), rows_in(read_config(path / CONFIG) or {}), any_vocabulary_of(path)
    who = "the base" if name == BASE else name
    if vocabulary is None:
        raise InputError(
            f"{who}: {path} has no tokenizer in a format that Merganser reads, so rows cannot be matched by token"
        )
    tables = {} if rows is None else tables_of(model, rows)
    if rows is None or not tables:
        raise InputError(f"{who}: {path} has no embeddings with the rows of the vocab_size in its {CONFIG}")
    return Member(name, path, model, vocabulary, rows, {table: table for table in tables})


def _member(name: str, path: Path, lead: Member) -> Member:
    """Open a task's model; one without a tokenizer uses the lead's."""
    if name == lead.name:
        return lead
    model, vocabulary = open_model(path), any_vocabulary_of(path) if path.is_dir() else None
    tables = _of_adapter(model, lead) if isinstance(model, Adapter) else _of_model(name, model, lead)
    rows = _rows(name, model, tables, lead)
    if vocabulary is None and rows != lead.rows:
        raise InputError(
            f"{name}: {path} has {rows} rows of tokens, the base {lead.rows}, and no tokenizer that is read"
        )
    changes_whole = not isinstance(model, Adapter) or any(model.updates[own].whole for own in tables.values())
    if vocabulary is not None and not changes_whole:
        _check_adapter(name, vocabulary, lead.vocabulary)
    return Member(name, path, model, lead.vocabulary if vocabulary is None else vocabulary, rows, tables)


def _of_model(name: str, model: Checkpoint, lead: Member) -> dict[str, str]:
    assert isinstance(lead.model, Checkpoint)
    view = matched(lead.model, model, EVERYTHING, name)
    assert isinstance(view, View)
    return {table: tensor_name(view.stored[table]) for table in lead.tables if table in view.stored}


def _of_adapter(adapter: Adapter, lead: Member) -> dict[str, str]:
    ends = [(table, own) for table in lead.tables for own in adapter.updates]
    pairs = {table: own for table, own in ends if f".{table}".endswith(f".{own}") or f".{own}".endswith(f".{table}")}
    others = [own for own in pairs.values() if adapter.updates[own].computed or adapter.updates[own].tokens]
    if others:
        remedy = "merge it into its base with PEFT's merge_and_unload first"
        raise InputError(f"{adapter.path}: {others[0]} has no rows that another vocabulary could arrange; {remedy}")
    return pairs


def _rows(name: str, model: Checkpoint | Adapter, tables: Mapping[str, str], lead: Member) -> int:
    """Return the number of rows of a model's tables; raise InputError if they differ, or have another width."""
    assert isinstance(lead.model, Checkpoint)
    axes, axis_of_rows = tables_of(lead.model, lead.rows), {}
    for table, own in tables.items():
        axis, ours = axes[table], lead.model.spec(table).shape
        for shape in model.shapes(own) if isinstance(model, Adapter) else {model.spec(own).shape}:
            if len(shape) != len(ours) or any(
                n != m for d, (n, m) in enumerate(zip(shape, ours, strict=True)) if d != axis
            ):
                raise InputError(
                    f"{name}: {own} has shape {list(shape)}, in the base {list(ours)}: a model of another size"
                )
            axis_of_rows[shape[axis]] = own
    if len(axis_of_rows) > 1:
        (one, first), (other, second) = sorted(axis_of_rows.items())[:2]
        raise InputError(f"{name}: {first} has {one} rows of tokens, {second} {other}; save the model again")
    return next(iter(axis_of_rows), lead.rows)


def _check_adapter(name: str, theirs: Vocabulary, ours: Vocabulary) -> None:
    """Refuse an adapter trained with the base's embeddings and another order of its tokens."""
    moved = sorted(token for token, number in theirs.items() if ours.get(token, number) != number)
    if moved:
        numbers = f"the number {theirs[moved[0]]}, that of the base {ours[moved[0]]}"
        raise InputError(
            f"{name}: its tokenizer gives {moved[0]!r} {numbers}, but the adapter saves no embeddings; "
            "give it the tokenizer that it was trained with"
        )


def _new(lead: Member, tasks: Sequence[Member]) -> dict[str, int]:
    """Number the tokens that tasks add to the lead's, in the tasks' order, each task's in its own order."""
    first = 1 + max(lead.vocabulary.values(), default=-1)
    ordered = (token for each in tasks for token in sorted(each.vocabulary, key=each.vocabulary.__getitem__))
    added = dict.fromkeys(token for token in ordered if token not in lead.vocabulary)
    return {token: first + place for place, token in enumerate(added)}


def _without_row(lead: Member, tasks: Sequence[Member]) -> list[int]:
    """Return the numbers of the lead's tokens with a row in a task's tables and none in its own."""
    owned = {token for each in tasks for token in each.tokens}
    return [number for token, number in lead.vocabulary.items() if number >= lead.rows and token in owned]


def _check_rules(plan: OneVocabulary) -> None:
    """Refuse a rule for a token that the merge, or the model in the rule, lacks."""
    for token, name in plan.choice.rows.items():
        owner = next(each for each in (plan.lead, *plan.tasks) if each.name == name)
        for who, keys in (("the merge's tokenizer", plan.keys), (name, owner.keys)):
            if token not in keys:
                place = f"{plan.choice.key('rows')} {token!r}"
                raise InputError(f"{place}: {who} has no such token{did_you_mean(token, map(str, keys))}")
