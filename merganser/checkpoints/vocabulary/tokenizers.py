"""The files of a tokenizer in a model's folder: copied from another model, or combined from several."""

import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config, read_object
from merganser.checkpoints.companions import list_model_files
from merganser.checkpoints.vocabularies import (
    FAST,
    LIMIT,
    SETTINGS,
    Vocabulary,
    any_vocabulary_of,
    loaded_tokenizer,
    numbers_in,
    special_tokens_of,
    vocabulary_of,
)
from merganser.checkpoints.vocabulary.rows import rows_in
from merganser.errors import InputError, refusing
from merganser.limits import check_link, parse_json

TEMPLATES = ("chat_template.*", "additional_chat_templates/*")
WORDS = (
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("*.model", "*.spm", "*.tiktoken", "*.bpe", "*.vocab"),
)
FILES = (FAST, SETTINGS, "special_tokens_map.json", *WORDS)
TEMPLATE_KEY = "chat_template"
SIZE = "vocab_size"
GENERATION = "generation_config.json"
# Where a token is named that a configuration has by its number.
NAMING = ("special_tokens_map.json", SETTINGS, "preprocessor_config.json", "processor_config.json")
NAMED_TOKEN = re.compile(r"\w+_token")
ONE_OF_THEM = "name one tokenizer for the merge: base, or a task's"
# What configurations say by a token's number, or of how many tokens there are.
TOKEN_KEYS = re.compile(rf"{SIZE}|\w*_token_(ids?|index)")


def take_tokenizer(origin: Path, folder: Path) -> None:
    """Replace a folder's tokenizer and chat template by a model's."""
    _take(origin, folder, (*FILES, *TEMPLATES))


def take_template(origin: Path, folder: Path) -> None:
    """Replace a folder's chat template by a model's."""
    _take(origin, folder, TEMPLATES)
    ours, theirs = (read_object(place / SETTINGS, LIMIT) or {} for place in (folder, origin))
    if ours.get(TEMPLATE_KEY) != theirs.get(TEMPLATE_KEY):
        kept = {key: value for key, value in ours.items() if key != TEMPLATE_KEY}
        taken = {key: value for key, value in theirs.items() if key == TEMPLATE_KEY}
        _write(folder / SETTINGS, kept | taken)


def tokenizer_names(names: Iterable[str], patterns: Sequence[str] = (*FILES, *TEMPLATES)) -> list[str]:
    """Return the files of a tokenizer among the names in a folder."""
    return [name for name in sorted(names) if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _take(origin: Path, folder: Path, patterns: Sequence[str]) -> None:
    for name in tokenizer_names(list_model_files(folder), patterns):
        (folder / name).unlink()
    for name in tokenizer_names(list_model_files(origin), patterns):
        check_link(origin / name, origin)
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(origin / name, folder / name)


def write_union(origin: Path, others: Mapping[str, Path], new: Vocabulary, folder: Path) -> None:
    """Replace a folder's tokenizer by a model's, plus the tokens that others add with these numbers.

    Raises InputError if tokens cannot be added: words to a tokenizer of another kind, or to an unsupported one.
    """
    contents = {task: content_of(path, task) for task, path in others.items()}
    content = united(content_of(origin, "the base"), contents, new)
    take_tokenizer(origin, folder)
    for pattern in WORDS:  # tokenizer.json says it all
        for path in folder.glob(pattern):
            path.unlink()
    _write(folder / FAST, content)


def content_of(folder: Path, who: str) -> dict[str, Any]:
    """Return a tokenizer's `tokenizer.json`; raise InputError if there is none in a supported form."""
    if (content := read_object(folder / FAST, LIMIT)) is None:
        backend = getattr(loaded_tokenizer(folder), "backend_tokenizer", None)
        content = parse_json(backend.to_str()) if backend else None
    if not isinstance(content, dict):
        raise InputError(
            f"{who}: {folder} has no {FAST}, and its other files are not enough to build one; {ONE_OF_THEM}"
        )
    return content


def united(content: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], new: Vocabulary) -> dict[str, Any]:
    """Add tokens with these numbers to a tokenizer, each as the first of the others that has it defines it.

    Tokens added to another tokenizer's words are added here too. Its words become words, with the merges of pairs
    that make them (BPE), or with their scores (Unigram).
    """
    union, model = deepcopy(dict(content)), deepcopy(content["model"])
    entries = {entry["content"]: entry for each in reversed([*others.values()]) for entry in each["added_tokens"]}
    words = {token for token in new if token not in entries}
    for task, each in others.items():
        kinds = [one["model"].get("type") for one in (content, each)]
        if words and kinds[0] != kinds[1] and not words.isdisjoint(_words(each["model"])):
            raise InputError(f"{task}: its tokenizer is a {kinds[1]}, that of the base a {kinds[0]}; {ONE_OF_THEM}")
    more = ({**entries[token], "id": number} for token, number in new.items() if token in entries)
    union["added_tokens"] = [*content["added_tokens"], *more]
    models = [each["model"] for each in others.values()]
    if isinstance(model["vocab"], dict):
        model["vocab"] |= {token: new[token] for token in new if token in words}
        model["vocab"] |= _pinned(model["vocab"], union["added_tokens"])
    elif words:
        model["vocab"] += _scored(model["vocab"], models, union["added_tokens"], new)
    if "merges" in model:
        model["merges"] += _merges(model["merges"], models, words)
    union["model"] = model
    _check_numbers(union, {**numbers_in(content), **new})
    return union


def _pinned(words: Vocabulary, added: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return added tokens that must be among the words to keep their numbers.

    The library numbers added tokens from the number of words on, whatever `id` the file has.

    >>> _pinned({"a": 0}, [{"content": "<s>", "id": 1}]), _pinned({"a": 0, "b": 2}, [{"content": "<s>", "id": 1}])
    ({}, {'<s>': 1})
    """
    outside = {entry["content"]: entry["id"] for entry in added if entry["content"] not in words}
    in_turn = sorted(outside.values()) == list(range(len(words), len(words) + len(outside)))
    return {} if in_turn else outside


def _words(model: Mapping[str, Any]) -> Collection[str]:
    words = model["vocab"]
    return words if isinstance(words, dict) else [word for word, _ in words]


def _scored(
    pieces: Sequence[Any], models: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]], new: Vocabulary
) -> list[list[Any]]:
    """Return the pieces to append to a Unigram model, in the order of the numbers; an added token scores 0."""
    scores = {piece: score for model in reversed(models) for piece, score in model["vocab"]}
    tokens = {entry["id"]: entry["content"] for entry in added} | {number: token for token, number in new.items()}
    numbers = range(len(pieces), max(new.values()) + 1)
    with refusing("the base's tokenizer has no token of one of the numbers below the added ones", ONE_OF_THEM):
        return [[tokens[number], scores.get(tokens[number], 0.0)] for number in numbers]


def _merges(known: Sequence[Any], models: Sequence[Mapping[str, Any]], words: Collection[str]) -> list[Any]:
    """Return the pairs that make new words, in the format of the known ones: texts, or lists of two."""
    pairs = (tuple(pair.split(" ") if isinstance(pair, str) else pair) for model in models for pair in model["merges"])
    merges = dict.fromkeys(pair for pair in pairs if "".join(pair) in words)
    return [" ".join(pair) if known and isinstance(known[0], str) else list(pair) for pair in merges]


def _check_numbers(content: Mapping[str, Any], numbers: Vocabulary) -> None:
    """Refuse a united tokenizer that gives the base's or a new token another number."""
    from tokenizers import Tokenizer

    with refusing("the tokenizers cannot be put together", ONE_OF_THEM, Exception):
        known = Tokenizer.from_str(json.dumps(content)).get_vocab(with_added_tokens=True)
        _refuse_moved(known, numbers, "the united tokenizer")


def _refuse_moved(known: Vocabulary, numbers: Vocabulary, who: str) -> None:
    """Refuse a tokenizer that gives a token another number than its row's."""
    moved = [(number, token) for token, number in numbers.items() if known.get(token) != number]
    if moved:
        number, token = min(moved)
        more = f", and {len(moved) - 1} more tokens have other numbers" if len(moved) > 1 else ""
        theirs = known.get(token, "no number")
        raise InputError(f"{who} gives {token!r} {theirs}, its row is {number}{more}; {ONE_OF_THEM}")


def check_written(folder: Path, origin: Path, numbers: Vocabulary) -> None:
    """Read a written tokenizer back with transformers, and compare every token's number with its row.

    `origin`: the model whose tokenizer it is, or extends; `numbers`: the tokens by row. Raises InputError if a
    token has another number, or if a number in the configurations, such as `image_token_id`, stands for another
    token than in `origin`.
    """
    loaded = loaded_tokenizer(folder) if find_spec("transformers") else None
    known = vocabulary_of(folder) if loaded is None else loaded.get_vocab()
    if known is None:
        return
    _refuse_moved(known, numbers, "the merge's tokenizer, read back,")
    before = misnumbered(origin, any_vocabulary_of(origin) or {})
    for key, told in misnumbered(folder, known).items():
        if key not in before:
            raise InputError(f"{told}; choose the tokenizer of a model whose configuration fits the base's")


def misnumbered(folder: Path, vocabulary: Vocabulary) -> dict[str, str]:
    """Find special tokens whose numbers in a folder's configurations differ from its tokenizer's.

    Returns a message for each, by its key, such as `image_token_id`.
    """
    files = [read_object(folder / name, LIMIT) or {} for name in NAMING]
    named = {key: value for content in files for key, value in content.items() if NAMED_TOKEN.fullmatch(key)}
    wrong = {}
    for file in (CONFIG, GENERATION):
        for key, number in _token_numbers(read_config(folder / file) or {}):
            token = named.get(key[: key.index("_token") + len("_token")])
            token = token.get("content") if isinstance(token, dict) else token
            numbers = number if isinstance(number, list) else [number]
            if isinstance(token, str) and number is not None and vocabulary.get(token) not in numbers:
                theirs = vocabulary.get(token, "no number")
                wrong[key] = f"{file}: {key} is {number}, and its tokenizer gives {token!r} {theirs}"
    return wrong


def numbers_beyond(folder: Path, rows: int) -> list[str]:
    """Report token numbers in a folder's configurations that are beyond the rows of its model's embeddings."""
    wrong = []
    for file in (CONFIG, GENERATION):
        for key, number in _token_numbers(read_config(folder / file) or {}):
            numbers = number if isinstance(number, list) else [number]
            if any(isinstance(each, int) and each >= rows for each in numbers):
                wrong.append(f"{file}: {key} is {number}, and its embeddings have {rows} rows")
    return wrong


def _token_numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a configuration, and of nested ones, that hold a token's number."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _token_numbers(value)
        elif key != SIZE and TOKEN_KEYS.fullmatch(key):
            yield key, value


def token_settings(folder: Path, otherwise: Path, vocabulary: Vocabulary, rows: int) -> dict[str, dict[str, Any]]:
    """Return the token settings of a tokenizer's model in its configurations, for tables of so many rows.

    An adapter has none: then they are the base's, `otherwise`, with the special tokens of the adapter's tokenizer.
    """
    config = read_config(folder / CONFIG)
    own = read_config(otherwise / CONFIG) or {} if config is None else config
    generation = read_config((otherwise if config is None else folder) / GENERATION)
    if config is None:
        special = {f"{key}_id": vocabulary.get(str(token)) for key, token in (special_tokens_of(folder) or {}).items()}
        own |= {key: number for key, number in special.items() if number is not None and key in own}
        generation = None
    inner = own.get("text_config")
    whole = {**inner, **own} if isinstance(inner, dict) else own
    numbers = {key: value for key, value in whole.items() if key != SIZE}
    return {CONFIG: _sized(own, rows_in(own), rows), GENERATION: numbers if generation is None else generation}


def _sized(config: Mapping[str, Any], before: int | None, rows: int) -> dict[str, Any]:
    """Set the number of rows in a configuration, and in nested ones, that had the old number."""
    inner = {key: _sized(value, before, rows) for key, value in config.items() if isinstance(value, dict)}
    return {**config, **inner, **({SIZE: rows} if config.get(SIZE) == before else {})}


def apply_token_settings(folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Write token settings into a model's configurations, for the keys that these have."""
    for name, theirs in settings.items():
        ours = read_config(folder / name)
        if ours is not None and (written := _with_tokens(ours, theirs)) != ours:
            _write(folder / name, written)


def _with_tokens(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    taken = {key: value for key, value in theirs.items() if TOKEN_KEYS.fullmatch(key)}
    kept = {key: value for key, value in ours.items() if key in taken or not TOKEN_KEYS.fullmatch(key)}
    inner = {
        key: _with_tokens(value, theirs[key])
        for key, value in kept.items()
        if isinstance(value, dict) and isinstance(theirs.get(key), dict)
    }
    return {**kept, **taken, **inner}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
