"""Match a data set's columns with the text, picture, sound and label that kinds of task read, by name and type.

Imports `datasets`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from merganser.config.text import as_line
from merganser.errors import InputError, some
from merganser.evaluation.columns import WORDS
from merganser.evaluation.data_sets import features_of
from merganser.sources.pointers import local_path

TEXT, PAIR, IMAGE, AUDIO, LABEL = "text", "pair", "image", "audio", "label"  # the columns that kinds of task read
TEXT_NAMES = (TEXT, "sentence", "content", "review", "tweet", "document")
LABEL_NAMES = (LABEL, "labels", "sentiment", "category", "target", "class")
ROW_NAMES = ("id", "idx", "index", "guid")  # of columns that number the rows
SHOWN = 12  # columns that a message lists


def features_at(source: Path) -> dict[str, Any]:
    """Return the feature of each column of a data set; empty if it is not complete, or not on this disk."""
    try:
        path = local_path(source)
        return dict(features_of(path)) if path else {}
    except (InputError, OSError):
        return {}


def columns_by_name(features: Mapping[str, Any]) -> dict[str, str]:
    """Find the text, picture, sound and label column by its usual name, or as the only one of its type.

    >>> from datasets import ClassLabel, Value
    >>> columns_by_name({"sentence": Value("string"), "sentiment": ClassLabel(names=["bad", "good"])})
    {'text': 'sentence', 'label': 'sentiment'}
    >>> columns_by_name({"sentence": Value("string"), "question": Value("string"), "label": Value("int64")})
    {'label': 'label'}
    """
    from datasets import Audio, ClassLabel, Image

    texts = [name for name in _texts(features) if name.lower() not in LABEL_NAMES]
    sounds = [name for name, feature in features.items() if isinstance(feature, Audio)]
    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    classes = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    labels = [name for name in features if name.lower() in LABEL_NAMES]
    possible = {
        TEXT: texts if any(name.lower() in TEXT_NAMES for name in texts) else [],
        IMAGE: images,
        AUDIO: sounds,
        LABEL: list(dict.fromkeys([*labels, *classes])) if labels else [],
    }
    own = {role: [role] if role in features else names for role, names in possible.items()}
    return {role: names[0] for role, names in own.items() if len(names) == 1}


def columns_by_type(features: Mapping[str, Any]) -> dict[str, str]:
    """Pair the columns that kinds of task read with the data set's, if a type has one column, or two of texts."""
    from datasets import Audio, ClassLabel, Image

    classes = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    labels = classes or [name for name, feature in features.items() if _dtype(feature).startswith("float")]
    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    texts = [name for name, feature in features.items() if _dtype(feature) in WORDS]
    columns = {LABEL: labels[0]} if len(labels) == 1 else {}
    columns |= {IMAGE: images[0]} if len(images) == 1 else {}
    sounds = [name for name, feature in features.items() if isinstance(feature, Audio)]
    columns |= {AUDIO: sounds[0]} if len(sounds) == 1 else {}
    return columns | (dict(zip((TEXT, PAIR), texts, strict=False)) if len(texts) <= len((TEXT, PAIR)) else {})


def unnamed_classes(features: Mapping[str, Any], label: str | None) -> str | None:
    """Return the type of labels without class names, `words` or `whole numbers`; None for others."""
    from datasets import ClassLabel

    feature = features.get(label or "")
    if feature is None or isinstance(feature, ClassLabel):
        return None
    kind = _dtype(feature)
    return "words" if kind in WORDS else "whole numbers" if kind.startswith(("int", "uint")) else None


def column_advice(features: Mapping[str, Any], roles: Iterable[str]) -> str:
    """List the data set's columns, and explain how `data.columns` assigns roles to them."""
    by_name = columns_by_name(features)
    texts = [name for name in _texts(features) if name.lower() not in (*LABEL_NAMES, *ROW_NAMES)]
    likely = {TEXT: texts, IMAGE: list(features), AUDIO: list(features), LABEL: list(features)[::-1]}
    example = dict[str, str]()
    for role in roles:
        free = [name for name in likely.get(role, []) if name not in example.values()]
        example[role] = by_name.get(role) or next(iter(free), "NAME")
    beside = [name for name in texts if name not in example.values()]
    if TEXT in example and len(beside) == 1:  # without it half of each example would be scored
        example = {TEXT: example.pop(TEXT), PAIR: beside[0], **example}
    return (
        f"the data has the columns {some(list(features), SHOWN)}; set data.columns, as in {as_line('columns', example)}"
    )


def _texts(features: Mapping[str, Any]) -> list[str]:
    """List the columns of words, without those that number the rows."""
    return [name for name, each in features.items() if _dtype(each) in WORDS and name.lower() not in ROW_NAMES]


def _dtype(feature: Any) -> str:
    return str(getattr(feature, "dtype", None))
