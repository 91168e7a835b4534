"""Infer a task's family, kind, columns and head from models and data on this disk.

Imports torch and transformers.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import filter as names_like
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.architecture import CONFIG, model_type_of, read_config
from merganser.checkpoints.companions import described_elsewhere
from merganser.checkpoints.kinds import IMAGE_HEADS, SPAN_HEADS, ParameterRules
from merganser.checkpoints.matching import matched
from merganser.checkpoints.reading import ADAPTER_CONFIG, open_checkpoint
from merganser.config.columns import (
    AUDIO,
    IMAGE,
    LABEL,
    TEXT,
    column_advice,
    columns_by_name,
    features_at,
    unnamed_classes,
)
from merganser.config.sections import UNMEASURED, Data
from merganser.config.tasks import fits
from merganser.errors import InputError
from merganser.evaluation import HasHead, get_kind, kind_names
from merganser.evaluation.data_sets import read_headers
from merganser.evaluation.evaluator import open_evaluator
from merganser.merging.cards import library_of
from merganser.models import EmbedsTexts, TakesImages, TakesSounds, family_names, get_family, has_ability
from merganser.models.naming import HEAD_NAMES
from merganser.plugins import FAMILIES, constants, own_configurations
from merganser.sources.hub_data import rename_columns
from merganser.sources.pointers import OpenClipPointer, local_path, read_pointer

# What an adapter of PEFT is for, where its architecture's families build several.
ADAPTED_FOR = {
    "SEQ_CLS": "text-classification",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
    "FEATURE_EXTRACTION": "sentence-similarity",
}
BEFORE = ("pre_classifier.*", "*pooler.*")  # a part of the head, if the base does without it
READ_BY: dict[str, type] = {IMAGE: TakesImages, AUDIO: TakesSounds}  # columns of data; by other families, texts
SOUND_HEADS = ("projector.*",)  # of classifiers of sounds, before `classifier`
NAMING_CLASSES = {"classes", "labels", "answers"}  # keys of kinds of task that say what labels stand for


def family_of(source: Path, tasks: Collection[Path] = ()) -> str | None:
    """Return the family of a model by its configuration file; None if none fits, or several do.

    `tasks`: the tasks' own models, whose heads decide between several families.
    """
    with suppress(InputError, OSError):
        path = local_path(source)
        if path is None:
            return "open_clip" if isinstance(read_pointer(source), OpenClipPointer) else None
        folder = path if path.is_dir() else path.parent
        config, own = model_type_of(read_config(folder / CONFIG) or {}), own_configurations()
        lacking = {name for name, file in own.items() if not (folder / file).is_file()}
        elsewhere = described_elsewhere().keys() - lacking
        named = [name for name in own if name in elsewhere]
        if config is not None:
            known = [name for name in family_names() if name not in lacking | elsewhere]
            named += [name for name in known if config in get_family(name).MODEL_TYPES]
        if len(named) > 1:
            named = _meant(named, tasks)
        if len(named) > 1:  # a model of open_clip and of transformers, or a CLIP and a classifier: by their parameters
            named = [name for name in named if _holds(name, path)] or [name for name in named if name == config]
        return named[0] if len(named) == 1 else None
    return None


def _meant(families: Sequence[str], tasks: Collection[Path]) -> list[str]:
    """Return those of several families that have the tasks' heads; if no file tells, the families of trunks.

    An adapter names its task type.
    """
    uses = {use for use in map(_use_of, tasks) if use is not None}
    about = {name: constants(FAMILIES, name) for name in families}
    meant = [name for name in families if uses and uses <= set(about[name]["PIPELINES"].values())]
    return meant or [name for name in families if about[name].get("TRUNKS_OF") not in families]


def _use_of(source: Path) -> str | None:
    """Return a model's use as model hubs call it; None if no file tells."""
    with suppress(InputError, OSError):
        if path := local_path(source):
            folder = path if path.is_dir() else path.parent
            adapter = read_config(folder / ADAPTER_CONFIG) or {}
            return ADAPTED_FOR.get(str(adapter.get("task_type"))) or library_of(folder, None)[1]
    return None


def _holds(family: str, source: Path) -> bool:
    try:
        get_family(family).check(source, open_checkpoint(source))
    except InputError:
        return False
    return True


def compares_with_texts(family: str) -> bool:
    """Tell whether a family's networks compare pictures with texts, made from class names by templates."""
    return family in family_names() and has_ability(family, EmbedsTexts) and has_ability(family, TakesImages)


def needs_head(kind: Any) -> bool:
    """Tell whether a known kind of task needs a head of the task's own."""
    return kind in kind_names() and isinstance(get_kind(kind), HasHead)


def heads_beyond(base: Path, models: Sequence[Path]) -> list[str]:
    """Return the patterns of the heads that models have beyond the base's parameters; empty if they differ.

    Also empty if a model has other parameters beyond the base's, or is not on this disk.
    """
    patterns = (*HEAD_NAMES, *IMAGE_HEADS, *SPAN_HEADS, *SOUND_HEADS, *BEFORE)
    beyond = [_names_beyond(base, model) for model in models]
    patterns_of_all = {tuple(pattern for pattern in patterns if names_like(names, pattern)) for names in beyond}
    heads = list(patterns_of_all.pop()) if len(patterns_of_all) == 1 else []
    rest = [name for names in beyond for name in names if not any(fnmatchcase(name, pattern) for pattern in heads)]
    return [] if rest else heads


def pattern_in_all(base: Path, models: Sequence[Path]) -> str | None:
    """Return a pattern such as `bert.*` for the base's parameters that all models have, if the base has others.

    The others are usually a pretraining head. Returns None if there are no others, if the models share different
    parameters, if no single prefix separates them, and for adapters.
    """
    with suppress(InputError, OSError):
        place, places = local_path(base), [local_path(model) for model in models]
        if place and all(places):
            names = open_checkpoint(place).names
            names_of_all = {tuple(_names_in(place, each)) for each in places if each}
            have = set(names_of_all.pop()) if len(names_of_all) == 1 else set(names)
            prefixes = [
                {name.partition(".")[0] for name in names if (name in have) is known} for known in (True, False)
            ]
            if len(have) < len(names) and len(prefixes[0]) == 1 and not prefixes[0] & prefixes[1]:
                return f"{prefixes[0].pop()}.*"
    return None


def _names_in(base: Path, model: Path) -> list[str]:
    """List the base's parameters that a model has; all of them for an adapter."""
    known, tuned = open_checkpoint(base), open_model(model)
    has = set(known.names if isinstance(tuned, Adapter) else matched(known, tuned, ParameterRules(), "").names)
    return [name for name in known.names if name in has]


def _names_beyond(base: Path, model: Path) -> list[str]:
    """List a model's parameters that the base lacks; their prefix may differ (`bert.`)."""
    with suppress(InputError, OSError):
        places = local_path(base), local_path(model)
        if places[0] and places[1]:
            known, tuned = open_checkpoint(places[0]), open_model(places[1])
            names = tuned.updates if isinstance(tuned, Adapter) else matched(known, tuned, ParameterRules(), "").names
            return [name for name in names if name not in known]
    return []


def parameter_names(source: Path) -> list[str]:
    """List a model's parameters, or those that an adapter changes; empty if it is not on this disk."""
    with suppress(InputError, OSError):
        if path := local_path(source):
            model = open_model(path)
            return list(model.updates if isinstance(model, Adapter) else model.names)
    return []


def infer_task_kind(data: Mapping[str, Any], family: str, source: Path) -> str | None:
    """Return the only kind of the family that fits a task's keys and the columns of its data.

    `data`: the task's `data` in the file; `source`: the path of the data. None if no kind fits, or several do.
    """
    own = {key: value for key, value in data.items() if key not in Data.model_fields}
    fitting = [name for name in _kinds_of(family) if _takes(name, own, data, source)]
    label = (data.get("columns") or {}).get(LABEL, LABEL)
    if not NAMING_CLASSES & own.keys() and unnamed_classes(features_at(source), label):
        fitting = [name for name in fitting if LABEL not in _columns_read(name, own)]  # numbers may be those of classes
    return fitting[0] if len(fitting) == 1 else None


def infer_columns(
    kind: str | None, data: Mapping[str, Any], family: str, source: Path
) -> tuple[str, dict[str, str]] | None:
    """Return the only kind that can read the data after renaming columns by their names, and that renaming.

    `kind`: the task's kind, if the file has it. None if the data needs no renaming, if no kind fits, or if several
    do.
    """
    if "columns" in data or not (features := features_at(source)):
        return None
    own = {key: value for key, value in data.items() if key not in Data.model_fields}
    kinds = _kinds_of(family)
    named = columns_by_name(features)
    if kind is None and not NAMING_CLASSES & own.keys() and unnamed_classes(features, named.get(LABEL)):
        return None  # numbers may be those of classes
    fitting = []
    for each in kinds if kind is None else [kind] if kind in kinds else []:
        read = _columns_read(each, own)
        columns = {role: column for role, column in named.items() if role in read and role != column}
        if columns and not _takes(each, own, data, source) and _takes(each, own, {**data, "columns": columns}, source):
            fitting.append((each, columns))
    return fitting[0] if len(fitting) == 1 else None


def kind_advice(data: Mapping[str, Any], family: str, source: Path) -> str | None:
    """Explain what to add to a task's `data` so that its kind can be inferred; None if the data set is not here."""
    features = features_at(source)
    own = {key: value for key, value in data.items() if key not in Data.model_fields}
    if not features or not any(_columns_read(kind, own) for kind in _kinds_of(family)):
        return None  # the keys, not the columns, are of no kind that the family does
    named = columns_by_name(features)
    labels = None if NAMING_CLASSES & own.keys() else unnamed_classes(features, named.get(LABEL))
    if TEXT in named and labels == "words":
        remedy = "list them under data.labels, in the order of the model's classes"
        return f"the column {named[LABEL]!r} of the data holds words; {remedy}"
    if TEXT in named and labels:
        remedy = "name the classes in their order under data.classes"
        return f"the column {named[LABEL]!r} of the data holds whole numbers; {remedy}"
    read = next((role for role, ability in READ_BY.items() if has_ability(family, ability)), TEXT)
    return column_advice(features, [read, LABEL])


def _kinds_of(family: str) -> list[str]:
    """List a family's kinds of task; empty for an unknown family."""
    if family not in family_names():
        return []
    return [name for name in kind_names() if name != UNMEASURED and fits(get_kind(name), family)]


def _columns_read(kind: str, own: Mapping[str, Any]) -> Collection[str]:
    try:
        evaluator = open_evaluator(kind, own, None)
        return evaluator.kind.columns(evaluator.settings) or ()
    except (InputError, ValidationError, OSError):
        return ()


def _takes(kind: str, own: Mapping[str, Any], data: Mapping[str, Any], source: Path) -> bool:
    """Tell whether a kind has these keys, and can read the data's columns if they are here."""
    try:
        evaluator = open_evaluator(kind, own, None)
        path = local_path(source)
        if path is not None:
            evaluator.check_data(rename_columns(read_headers(path), data.get("columns") or {}, source), source)
    except (InputError, ValidationError, OSError):
        return False
    return True
