"""Compare the files next to the models' weights: equal shapes do not mean equal models.

A merge gets the base's files. Differences that make a merge meaningless are refused; others are reported. If the base
has no such file, the first model that has one is the reference.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from merganser.checkpoints.adapters.binding import moved_together
from merganser.checkpoints.adapters.files import Adapter
from merganser.checkpoints.adapters.settings import adapter_base
from merganser.checkpoints.architecture import CONFIG, CONFIG_LIMIT, read_config, read_object
from merganser.checkpoints.companions import MODULES
from merganser.checkpoints.configurations import (
    OF_GENERATION,
    check_configuration,
    check_head_labels,
    class_labels,
    list_settings,
)
from merganser.checkpoints.kinds import FLOATS, ParameterRules, is_merged
from merganser.checkpoints.matching import without_ddp
from merganser.checkpoints.own_settings import GENERATION, preparation_of
from merganser.checkpoints.reading import DESCRIPTION, wrappers_of
from merganser.checkpoints.sentence_files import ENCODER, SENTENCES, encoding_of, module_types, pools_of, settings_of
from merganser.checkpoints.tensors import DTYPES, Checkpoint
from merganser.checkpoints.vocabularies import (
    BY_TOKEN,
    FAST,
    Vocabulary,
    beyond_rows,
    check_vocabulary,
    division_of,
    has_vocabulary,
    lower_case_of,
    special_tokens_of,
    template_of,
    vocabulary_of,
)
from merganser.checkpoints.vocabularies import SETTINGS as TOKENIZER_SETTINGS
from merganser.checkpoints.vocabulary.rows import rows_in
from merganser.checkpoints.vocabulary.tokenizers import numbers_beyond
from merganser.errors import MALFORMED, refusing
from merganser.hashes import sha256_of

EVERYTHING = ParameterRules()
PREPARED = "preparation of pictures and sounds"
SETTINGS = (GENERATION, SENTENCES)  # further files that change what a model gives
SENTENCEPIECE, SHOWN = "tokenizer.model", 12
BASE = "the base"
VOCABULARY = "vocabulary"
WRAPPED = "read without the wrappers of training in its names: "
TOGETHER = "was trained under one of two names that the base ties: the merge changes both, as PEFT's does"
Read = Callable[[Path], dict[str, Any] | None]
Opened = tuple[Checkpoint, Checkpoint | Adapter]  # the base and a model


@dataclass
class Agreement:
    """The base's folder, and the settings read from it and from the models compared so far."""

    base: Path
    rules: ParameterRules = EVERYTHING
    among: bool = False  # whether the models are compared with each other alone
    _known: dict[str, tuple[str, Any]] = field(default_factory=dict)  # by what it is of: who said it first, and what
    _added: dict[int, tuple[str, str]] = field(default_factory=dict)  # by number: who first added which token
    is_whole: bool = True  # whether the base is a folder, and no file in one

    def __post_init__(self) -> None:
        """Take the folder of a base that is a file."""
        if not self.base.is_dir():
            self.base, self.is_whole = self.base.parent, False

    def check(self, task: str, model: Path, opened: Opened) -> list[str]:
        """Compare a model's folder with the earlier ones; return notes for the user.

        `opened`: the base and the model. A single file stands for its folder, but a merge onto one gets `config.json`
        alone, without notes about other files. Raises InputError if the model has another architecture, other numbers
        for tokens or classes, or merged embeddings of another vocabulary. Missing files are not compared.
        """
        model = model if model.is_dir() else model.parent
        notes = [f"{task}: {WRAPPED}{', '.join(sorted(wrappers))}" for wrappers in [_wrappers(*opened)] if wrappers]
        notes += check_configuration(self.base, model, task)
        if isinstance(opened[1], Adapter):
            notes += _other_base(self.base, model, task)
            notes += [f"{task}: its {name} {TOGETHER}" for name in moved_together(opened[1], opened[0])]
        elif not self.rules.flags:  # `merganser merge` writes any dtype
            notes += _rounded(task, opened[0], opened[1], self.rules)
        further = self._compare(task, model, opened) + self._template(task, model)
        return notes + (further if self.is_whole else [])

    def compare_among(self, models: Mapping[str, Path], opened: Checkpoint) -> list[str]:
        """Compare tasks' folders with each other in settings that the base lacks, after the comparison with the base.

        `opened`: the base, whose shapes the models have. Raises InputError as `check` does.
        """
        self.among = True
        return [note for task, model in models.items() for note in self._compare(task, model, (opened, opened))]

    def _compare(self, task: str, model: Path, opened: Opened) -> list[str]:
        """Compare the settings of a model's folder with those of the first folder that has them."""
        notes: list[str] = []
        read_vocabulary = partial(self._read_vocabulary, task, notes)
        if (vocabulary := self._first(VOCABULARY, read_vocabulary, task, model)) is not None:
            notes += check_vocabulary(*vocabulary, task, opened, self.rules)
            notes += self._mixed(task, *vocabulary[1:])
        if (labels := self._first("labels", class_labels, task, model)) is not None:
            check_head_labels(*labels, task, model, opened, self.rules)
        names = (*SETTINGS, *pools_of(self.base))
        settings: dict[str, Read] = {"special tokens": special_tokens_of, PREPARED: preparation_of}
        settings |= {FAST: division_of, TOKENIZER_SETTINGS: lower_case_of, CONFIG: _generation_of_older}
        settings |= {MODULES: module_types, ENCODER: encoding_of}
        settings[SENTENCEPIECE] = _sentencepiece_of
        for what, read in (settings | {name: partial(settings_of, name) for name in names}).items():
            if (pair := self._first(what, read, task, model)) is not None:
                notes += _differences(*pair, task, what)
        return notes

    def _mixed(self, task: str, ours: Vocabulary, theirs: Vocabulary) -> list[str]:
        """Name a row that is a token which the base lacks, and a different token in an earlier model."""
        for token, number in theirs.items():
            if token not in ours:
                first, other = self._added.setdefault(number, (task, token))
                if other != token:
                    mixed = f"row {number} is {token!r} in it and {other!r} in {first}, and the merge mixes them"
                    return [f"{task}: {mixed}; {BY_TOKEN[self.rules.flags]}"]
        return []

    def _read_vocabulary(self, task: str, notes: list[str], folder: Path) -> dict[str, int] | None:
        """Read a vocabulary; add notes about tokens and numbers beyond the rows of its model's embeddings."""
        vocabulary = vocabulary_of(folder)
        rows = None if vocabulary is None or self.among else rows_in(read_config(folder / CONFIG) or {})
        if vocabulary is not None and rows is not None:
            who = BASE if folder == self.base else task
            notes += [*beyond_rows(who, vocabulary, rows), *(f"{who}: {told}" for told in numbers_beyond(folder, rows))]
        return vocabulary

    def _first(self, what: str, read: Callable[[Path], Any], task: str, model: Path) -> tuple[str, Any, Any] | None:
        """Return the first folder with a setting, its value, and the model's value; None unless both have it.

        Also None if that folder is the base's, when tasks are compared with each other.
        """
        if self.among and what == VOCABULARY and has_vocabulary(self.base):
            return None  # known without reading it
        if what not in self._known and (of_base := _read(what, read, self.base)) is not None:
            self._known[what] = BASE, of_base
        own = _read(what, read, model)
        if own is None or what not in self._known:
            if own is not None:
                self._known[what] = task, own
            return None
        who, ours = self._known[what]
        return None if self.among and who == BASE else (who, ours, own)

    def _template(self, task: str, model: Path) -> list[str]:
        own, of_base = template_of(model), template_of(self.base)
        if own is None or own == of_base:
            return []
        if of_base is None:
            return [f"{task}: it has a chat template; the base, and so the merge, has none"]
        return [f"{task}: its chat template is not the base's, which the merge has"]


def _read(what: str, read: Callable[[Path], Any], folder: Path) -> Any:
    with refusing(f"{folder}: {what}: cannot be read", "fetch it again", (*MALFORMED, RecursionError)):
        return read(folder)


def _rounded(task: str, base: Checkpoint, model: Checkpoint, rules: ParameterRules) -> list[str]:
    """Note a model whose weights have more digits than the base's dtype can hold."""
    merged = [name for name in model.names if name in base and is_merged(name, model.spec(name).dtype, rules)]
    both = {(model.spec(name).dtype, base.spec(name).dtype) for name in merged}
    pairs = [(DTYPES[own], DTYPES[ours]) for own, ours in sorted(both) if ours in FLOATS]
    words = [f"{own}, the base's {ours}" for own, ours in pairs if torch.promote_types(own, ours) != ours]
    how = "merges and its own model are measured with the base's dtype; to keep its digits, give a wider base"
    return [f"{task}: its weights are {each.replace('torch.', '')}: {how}" for each in words]


def _wrappers(base: Checkpoint, model: Checkpoint | Adapter) -> set[str]:
    """Return the training wrappers removed from a model's names; DDP's only if the base has none."""
    if isinstance(model, Adapter):
        return {*wrappers_of(model.tensors)}
    own = any(without_ddp(name) != name and name not in base for name in model.names)
    return {*wrappers_of(model), *(["module"] if own else [])}


def _generation_of_older(folder: Path) -> dict[str, Any] | None:
    """Read the generation settings in `config.json`; None if there is a `generation_config.json`."""
    config = None if (folder / GENERATION).is_file() else read_config(folder / CONFIG)
    if config is None:
        return None
    return {key: value for key, value in config.items() if re.fullmatch(OF_GENERATION, key)}


def _sentencepiece_of(folder: Path) -> dict[str, Any] | None:
    """Return a hash of SentencePiece's file; None if it is missing, or another file has the vocabulary."""
    if has_vocabulary(folder) or not (folder / SENTENCEPIECE).is_file():
        return None
    return {"sha256": sha256_of(folder / SENTENCEPIECE)[:SHOWN]}


def _differences(who: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], task: str, what: str) -> list[str]:
    """Name the settings that differ; a setting that only one side has counts as none."""
    pairs = {key: (ours.get(key), theirs.get(key)) for key in {**ours, **theirs}}
    differing = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    merged = "the merge has the base's" if who == BASE else "the base, and so the merge, has none"
    return [f"{task}: {what}: {list_settings(differing, who)}; {merged}"] if differing else []


def _other_base(base: Path, model: Path, task: str) -> list[str]:
    """Return the model that an adapter was trained on, if nothing shows that the base is that model."""
    named = adapter_base(model)
    fetched, config = read_object(base / DESCRIPTION, CONFIG_LIMIT) or {}, read_config(base / CONFIG) or {}
    names = (*base.resolve().parts, fetched.get("hub"), fetched.get("source"), config.get("_name_or_path"))
    own = (named or "").rstrip("/").rpartition("/")[2].lower()
    if named is None or (own and any(str(name).lower().endswith(own) for name in names)):
        return []
    return [f"{task}: its adapter_config.json names {named} as its base model; check that yours is the same"]
