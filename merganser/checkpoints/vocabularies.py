"""Read tokenizers and chat templates from files alone, and compare the vocabularies of two models.

If a token has another number, rows of the embeddings stand for other tokens, and merging them makes no sense.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from merganser.checkpoints.adapters.files import Adapter
from merganser.checkpoints.architecture import read_object
from merganser.checkpoints.kinds import ParameterRules, is_merged, without
from merganser.checkpoints.tensors import Checkpoint, Spec
from merganser.errors import InputError, quoting, refusing, some
from merganser.limits import read_small

FAST, SETTINGS = "tokenizer.json", "tokenizer_config.json"
LOADED = ("*.model", "*.spm", "*.tiktoken")  # what only transformers reads
LIMIT = 2**27  # bytes: a vocabulary of 260,000 tokens takes 35 MB
SHOWN = 5
BY_TOKEN = {  # on the command line, and in params.yaml
    True: "match rows by token: --tokenizer union",
    False: "match rows by token: declare vocabularies (docs/params.md)",
}
Vocabulary = Mapping[str, int]


class ResizedTablesError(InputError):
    """Report `tables`, embeddings and heads with a row per token, with more or fewer rows than the base's."""

    def __init__(self, message: str, tables: Iterable[str]) -> None:
        self.tables = tuple(tables)
        super().__init__(message)


def check_vocabulary(
    who: str,
    ours: Vocabulary,
    theirs: Vocabulary,
    task: str,
    opened: tuple[Checkpoint, Checkpoint | Adapter],
    rules: ParameterRules,
) -> list[str]:
    """Compare a model's vocabulary with the base's, or with that of `who`; return notes for the user.

    `opened`: the base and the model. Raises InputError naming tokens with another number, and ResizedTablesError if
    merged embeddings have other numbers of rows.
    """
    _check_numbers(who, ours, theirs, task, rules)
    difference = _difference(who, ours, theirs)
    _check_rows(*opened, task, difference or f"its vocabulary is that of {who}", rules)
    if not difference:
        return []
    merged = "the merge has the base's tokenizer" if who == "the base" else "the base, and so the merge, has none"
    return [f"{task}: {difference}; {merged}"]


def has_vocabulary(folder: Path) -> bool:
    """Tell whether a folder has a vocabulary in a supported format."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))


def vocabulary_of(folder: Path) -> dict[str, int] | None:
    """Read the numbers of a tokenizer's tokens; None without a file in a supported format."""
    with _reading(folder):
        if (content := read_object(folder / FAST, LIMIT)) is not None:
            return numbers_in(content)
        added = read_object(folder / "added_tokens.json", LIMIT) or {}
        if (words := read_object(folder / "vocab.json", LIMIT)) is not None:
            return _numbers(words | added)
        if (folder / "vocab.txt").is_file():
            lines = read_small(folder / "vocab.txt", LIMIT).decode().removesuffix("\n").split("\n")
            return {token: number for number, token in enumerate(lines)} | _numbers(added)
    return None


def _reading(folder: Path) -> AbstractContextManager[None]:
    return refusing(f"{folder}: its tokenizer's files cannot be read", "fetch it again")


def loaded_tokenizer(folder: Path) -> Any:
    """Load a tokenizer with transformers, without custom code; None if the folder has none that it reads."""
    if not any(match.is_file() for pattern in (FAST, *LOADED, "vocab.*") for match in folder.glob(pattern)):
        return None
    from transformers import AutoTokenizer

    with quoting(f"{folder}: its tokenizer cannot be loaded"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def any_vocabulary_of(folder: Path) -> dict[str, int] | None:
    """Return a tokenizer's token ids, SentencePiece's too; None if the folder has no tokenizer.

    If the file has duplicate ids or gaps, transformers numbers the tokens itself, and its ids are returned.
    """
    vocabulary = vocabulary_of(folder)
    if vocabulary is not None and sorted(vocabulary.values()) == [*range(len(vocabulary))]:
        return vocabulary
    loaded = loaded_tokenizer(folder)
    return vocabulary if loaded is None else _numbers(loaded.get_vocab())


def template_of(folder: Path) -> str | None:
    """Read a folder's chat template."""
    if (folder / "chat_template.jinja").is_file():
        return read_small(folder / "chat_template.jinja").decode(errors="replace")
    template = (read_object(folder / SETTINGS, LIMIT) or {}).get("chat_template")
    return None if template is None else str(template)


def special_tokens_of(folder: Path) -> dict[str, Any] | None:
    """Read which tokens begin, end, pad and separate texts; None if no file tells."""
    files = [read_object(folder / name, LIMIT) for name in ("special_tokens_map.json", SETTINGS)]
    if all(content is None for content in files):
        return None
    said = {key: value for content in files for key, value in (content or {}).items() if key.endswith("_token")}
    return {key: value.get("content") if isinstance(value, dict) else value for key, value in said.items()}


def division_of(folder: Path) -> dict[str, Any] | None:
    """Read how `tokenizer.json` splits a text into tokens: each part's type, with a hash; None without that file."""
    with _reading(folder):
        if (content := read_object(folder / FAST, LIMIT)) is None:
            return None
        model = content.get("model") or {}
        merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model.get("merges") or []]
        scores = model.get("vocab") if isinstance(model.get("vocab"), list) else None
        parts = {key: content.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor")}
        return {key: _hashed(part) for key, part in {**parts, "merges": merges, "scores": scores}.items() if part}


def _hashed(part: Any) -> str:
    """Return a short hash of a JSON value, after its type if it has one."""
    written = hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:8]
    return f"{part['type']} {written}" if isinstance(part, dict) and "type" in part else written


def lower_case_of(folder: Path) -> dict[str, Any] | None:
    """Read whether a tokenizer lower-cases texts and strips accents; None if its settings do not tell."""
    settings = read_object(folder / SETTINGS, LIMIT) or {}
    return {key: settings[key] for key in ("do_lower_case", "strip_accents") if settings.get(key) is not None} or None


def numbers_in(content: Mapping[str, Any]) -> dict[str, int]:
    """Read `tokenizer.json`: words with their numbers, or (Unigram) with their scores, in the order of the numbers."""
    words = (content["model"] or {}).get("vocab") or {}
    listed = words if isinstance(words, dict) else {entry[0]: number for number, entry in enumerate(words)}
    added = {entry["content"]: entry["id"] for entry in content.get("added_tokens") or []}
    return _numbers(listed | added)


def _numbers(words: Mapping[Any, Any]) -> dict[str, int]:
    return {str(token): int(number) for token, number in words.items()}


def _check_numbers(who: str, ours: Vocabulary, theirs: Vocabulary, task: str, rules: ParameterRules) -> None:
    moved = sorted((number, token) for token, number in theirs.items() if ours.get(token, number) != number)
    if moved:
        number, token = moved[0]
        more = f", and {len(moved) - 1} more tokens have others" if len(moved) > 1 else ""
        raise InputError(
            f"{task}: its tokenizer gives {token!r} the number {number}, that of {who} {ours[token]}{more}: the rows "
            f"of their embeddings mean different tokens; {BY_TOKEN[rules.flags]}"
        )


def beyond_rows(who: str, vocabulary: Vocabulary, rows: int) -> list[str]:
    """Name tokens whose numbers are beyond the rows of a model's embeddings.

    >>> beyond_rows("the base", {"a": 0, "<bot>": 1}, 1)
    ["the base: its tokenizer has tokens without a row in its embeddings of 1 rows: '<bot>'"]
    """
    beyond = sorted((number, token) for token, number in vocabulary.items() if number >= rows)
    tokens = list_tokens(token for _, token in beyond)
    return (
        [f"{who}: its tokenizer has tokens without a row in its embeddings of {rows} rows: {tokens}"] if beyond else []
    )


def list_tokens(tokens: Iterable[object]) -> str:
    """List the first few of some tokens."""
    return some([repr(token) for token in tokens], SHOWN)


def _difference(who: str, ours: Vocabulary, theirs: Vocabulary) -> str:
    """Describe the tokens that only one of two vocabularies has."""
    differences = []
    for has, one, other in (("it has", theirs, ours), ("it lacks", ours, theirs)):
        if tokens := sorted((number, token) for token, number in one.items() if token not in other):
            differences.append(f"{has} {list_tokens(token for _, token in tokens)}")
    return f"its vocabulary differs from that of {who}: {'; '.join(differences)}" if differences else ""


def _check_rows(
    base: Checkpoint, model: Checkpoint | Adapter, task: str, difference: str, rules: ParameterRules
) -> None:
    """Refuse merged embeddings with other numbers of rows and another vocabulary."""
    shapes = _shapes(base, model)
    resized = [name for name, shape in shapes.items() if _is_resized(base.spec(name), shape, name, rules)]
    if resized:
        ours, theirs = base.spec(resized[0]).shape[0], shapes[resized[0]][0]
        remedy = f"{BY_TOKEN[rules.flags]}, or {without(resized, base.names, rules)}"
        biases = [n for n in shapes if (base.spec(n).shape, shapes[n]) == ((ours,), (theirs,))]
        message = f"{task}: {resized[0]} has {theirs} rows, the base's {ours}: {difference}; {remedy}"
        raise ResizedTablesError(message, [*resized, *biases])


def _shapes(base: Checkpoint, model: Checkpoint | Adapter) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model, or of an adapter's changes, by the base's names."""
    if not isinstance(model, Adapter):
        return {name: model.spec(name).shape for name in base.names if name in model}
    ends = ((name, own) for name in base.names for own in model.updates if f".{name}".endswith(f".{own}"))
    return {name: next(iter(shapes)) for name, own in ends if (shapes := model.shapes(own))}


def _is_resized(spec: Spec, other: tuple[int, ...], name: str, rules: ParameterRules) -> bool:
    """Tell whether a merged parameter differs from the base's in the number of rows alone."""
    same = len(spec.shape) == len(other) == 2 and spec.shape[1] == other[1]
    return same and spec.shape[0] != other[0] and is_merged(name, spec.dtype, rules)
