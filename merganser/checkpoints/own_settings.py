"""The files of a task's own model: the base's, with the settings in which the task's checkpoint differs.

A merge has the base's files. A model rebuilt for a task has the base's names and shapes, but the task's configuration,
preparation of pictures and texts, and tokens that begin and end them.
"""

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config, read_object
from merganser.checkpoints.companions import MODULES, copy_companions
from merganser.checkpoints.configurations import (
    OPEN_CLIP,
    TYPE,
    differing_settings,
    in_todays_words,
    key_of_part,
    of_one_part,
)
from merganser.checkpoints.sentence_files import ENCODER, OLD_SENTENCES, SENTENCES, embedding_of, longest_of
from merganser.checkpoints.vocabularies import LIMIT, special_tokens_of, vocabulary_of
from merganser.hashes import sha256_of
from merganser.limits import check_link

GENERATION = "generation_config.json"
# What it says of greedy decoding: where a text starts and ends. How to sample is not its business.
GENERATED_TOKENS = (
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
VOCABULARY = ("tokenizer.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken")
TOKENIZER = (*VOCABULARY, "tokenizer*", "*tokens*.json")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
EMBEDDED = (MODULES, ENCODER, SENTENCES, *OLD_SENTENCES, f"[0-9]*_*/{CONFIG}")  # of sentence encoders
PARTS = ("feature_extractor", "video_processor")  # of a processor, beside that of pictures
# Of tokenizers and processors, what changes no token and no pixel: where they are from, and what a call sets itself.
HARMLESS = (
    *("name_or_path", "tokenizer_file", "special_tokens_map_file", "tokenizer_class", "processor_class"),
    *("model_max_length", "max_len", "padding_side", "truncation_side", "model_input_names", "transformers_version"),
    *("feature_extractor_type", "image_processor_type", "_valid_processor_keys", "added_tokens_decoder", "is_local"),
    *("backend", "truncation", "padding", "version", "chat_template"),
)


@dataclass(frozen=True)
class Group:
    """Files that hold one group of settings, and these settings; None if there are none."""

    files: Sequence[str]
    read: Callable[[Path], Any]
    of_tokens: bool


def write_own(base: Path, model: Path, folder: Path) -> bool:
    """Write the files of a task's own model into a new folder; tell whether they differ from the base's.

    `base`, `model`: folders. If nothing differs, no folder is made. Token settings stay the base's if the task's
    tokenizer numbers tokens otherwise, since the rows of the embeddings are the base's.
    """
    of_tokens = has_rows_for(base, model)
    written = _configurations(base, model, of_tokens)
    groups = [group for group in GROUPS if (of_tokens or not group.of_tokens) and _differs(group, base, model)]
    if not written and not groups:
        return False
    folder.mkdir()
    copy_companions(base, folder)
    for group in groups:
        for file in _files(folder, group.files):
            file.unlink()
        for file in _files(model, group.files):
            check_link(file, model)
            target = folder / file.relative_to(model)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return True


def has_rows_for(base: Path, model: Path) -> bool:
    """Tell whether the rows of the base's embeddings belong to a model's tokens, as far as files tell."""
    if _digests(base) == _digests(model):
        return True
    ours, theirs = vocabulary_of(base), vocabulary_of(model)
    if ours is None or theirs is None:
        return True
    config = read_config(base / CONFIG) or {}
    said = (_mapping(config, "text_config") | config).get("vocab_size")
    rows = said if isinstance(said, int) else max(ours.values(), default=0) + 1
    return all(ours.get(token, number) == number < rows for token, number in theirs.items())


def preparation_of(folder: Path) -> dict[str, Any] | None:
    """Read how a model's pictures, sounds and videos are resized, cropped and scaled; None if no file tells."""
    own, whole = (read_config(folder / name) for name in PROCESSORS)
    settings = own if own is not None else _parts_of(whole or {})
    if settings is None:
        settings = (read_config(folder / OPEN_CLIP) or {}).get("preprocess_cfg")
    return _without(settings, HARMLESS) if isinstance(settings, dict) else None


def _parts_of(processor: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read a processor's preparation of pictures, and under their own names that of sounds and videos."""
    others = ((f"{part}.", _without(_mapping(processor, part), HARMLESS)) for part in PARTS)
    inner = {prefix + key: value for prefix, content in others for key, value in content.items()}
    return {**_mapping(processor, "image_processor"), **inner} or None


def _tokenizer_of(folder: Path) -> Any:
    if not _files(folder, VOCABULARY):
        return None
    content = read_object(folder / "tokenizer.json", LIMIT)
    words = _digests(folder) if content is None else _without(content, HARMLESS)
    settings = read_object(folder / "tokenizer_config.json", LIMIT) or {}
    tokens = [key for key in settings if key.endswith("_token")]
    said = {key: value for key, value in _without(settings, {*HARMLESS, *tokens}).items() if value is not None}
    return words, special_tokens_of(folder), said


def _generated_by(folder: Path) -> dict[str, Any] | None:
    """Read which tokens begin and end generated text; an adapter's folder without configuration has none."""
    content = read_config(folder / GENERATION) or read_config(folder / CONFIG)
    return None if content is None else {key: content.get(key) for key in GENERATED_TOKENS}


GROUPS = (
    Group(PROCESSORS, preparation_of, of_tokens=False),
    Group(TOKENIZER, _tokenizer_of, of_tokens=True),
    Group((GENERATION,), _generated_by, of_tokens=True),
    Group(EMBEDDED, embedding_of, of_tokens=False),
    Group(TOKENIZER, longest_of, of_tokens=True),
)


def _differs(group: Group, base: Path, model: Path) -> bool:
    theirs = group.read(model)
    return theirs is not None and theirs != group.read(base)


def _configurations(base: Path, model: Path, of_tokens: bool) -> dict[str, dict[str, Any]]:
    """Yield the base's configurations with the model's settings, by file, if they differ."""
    configurations = {}
    ours, theirs = (read_config(folder / CONFIG) for folder in (base, model))
    if ours is not None and theirs is not None and (made := _with_settings(ours, theirs, of_tokens)) is not None:
        configurations[CONFIG] = made
    ours, theirs = (read_config(folder / OPEN_CLIP) or {} for folder in (base, model))
    if isinstance(own := ours.get("model_cfg"), dict):
        built = _with_settings(own, _mapping(theirs, "model_cfg") or own, of_tokens)
        prepared = _mapping(ours, "preprocess_cfg") | _mapping(theirs, "preprocess_cfg")
        if built is not None or prepared != _mapping(ours, "preprocess_cfg"):
            configurations[OPEN_CLIP] = {**ours, "model_cfg": built or own, "preprocess_cfg": prepared}
    return configurations


def _with_settings(ours: dict[str, Any], theirs: dict[str, Any], of_tokens: bool) -> dict[str, Any] | None:
    """Return a configuration with another one's settings for the forward pass; None if it has them.

    If the other model is a part of this one, such as an image tower, that part gets them.
    """
    ours, theirs = in_todays_words(ours, theirs)
    one, other = of_one_part(ours, theirs)
    key = None if one is ours else key_of_part(ours, theirs.get(TYPE))
    names = [
        name
        for name, (_, value) in differing_settings(one, other).items()
        if not name.endswith("_token_id") or (of_tokens and value is not None)
    ]
    if not names:
        return None
    made = _replaced(one, other, names)
    return made if key is None else {**ours, key: made}


def _replaced(one: Mapping[str, Any], other: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Copy settings from another configuration, nested ones by dotted names; remove those that it lacks."""
    made = dict(one)
    for key in dict.fromkeys(name.partition(".")[0] for name in names):
        nested = [name.partition(".")[2] for name in names if name.startswith(f"{key}.")]
        if nested and isinstance(one.get(key), Mapping) and isinstance(other.get(key), Mapping):
            made[key] = _replaced(one[key], other[key], nested)
        elif key in other:
            made[key] = other[key]
        else:
            made.pop(key, None)
    return made


def _mapping(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in _files(folder, (*VOCABULARY, "added_tokens.json"))}


def _without(content: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in keys}
