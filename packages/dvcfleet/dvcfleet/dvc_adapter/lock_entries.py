"""Entries of dvc.lock and of the run cache as text: the bytes that DVC writes, mostly without its YAML library.

That library takes milliseconds per entry. Entries hold mostly names, paths, hashes and sizes, which YAML writes
verbatim; it is used only for entries with anything else, and for what a version of a YAML file has and another lacks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from dvcfleet.errors import UserError

STAGES = "stages"  # the section without which a dvc.yaml has lost all that a run knows of it


def parse_map(text: str) -> dict[str, Any] | None:
    """Return the map in a YAML text, empty for an empty text; None for anything else."""
    from dvc.utils.serialize import YAMLError, parse_yaml

    try:
        content = parse_yaml(text, "")
    except (YAMLError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def parse_strictly(text: str, path: str) -> Any:
    """Parse YAML as DVC does, without repeated keys; raise UserError that names the file."""
    from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml

    try:
        content = parse_yaml(text, path)
        str(content)  # what is nested too deeply for a message
    except (ValueError, RecursionError, YAMLFileCorruptedError) as error:  # int() and date() raise others
        raise UserError(f"{path}: cannot be read as YAML: {error.__cause__ or error}") from error
    return content


def is_destroyed(content: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> bool:
    """Tell whether a file that was valid before is now empty, no map, or without stages."""
    return bool(before) and (not content or (STAGES in (before or {}) and STAGES not in content))


def restore_map(before: str, now: Mapping[str, Any] | None, additions: Mapping[str, Any]) -> str:
    """Return a valid earlier YAML text plus what is in the file now, plus these additions; unchanged without either."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update

    content = parse_yaml_for_update(before, "")
    _update(content, now or {})
    add_missing(content, additions)
    return before if content == parse_map(before) else str(dumps_yaml(content))


def add_missing(content: Any, more: Any) -> list[str]:
    """Add to a map or a list what it lacks of another one, at any depth; return the key paths of the additions."""
    added: list[str] = []
    if isinstance(content, MutableMapping) and isinstance(more, Mapping):
        for key, value in more.items():
            if key in content:
                added += [f"{key}.{below}" for below in add_missing(content[key], value)]
            else:
                content[key] = deepcopy(value)
                added.append(str(key))
    elif isinstance(content, MutableSequence) and isinstance(more, list):
        lacking = _lacking(content, more)
        content.extend(deepcopy(lacking))
        added += map(_name, lacking)
    return added


def added_values(content: Any, before: Any) -> Any:
    """Return what was added to a map or a list, at any depth; None or empty if nothing was.

    >>> added_values({"a": 1, "b": [1, 2], "c": {"d": 1, "e": 2}}, {"a": 0, "b": [1], "c": {"d": 1}})
    {'b': [2], 'c': {'e': 2}}
    """
    if isinstance(content, Mapping) and isinstance(before, Mapping):
        news = {key: added_values(value, before[key]) if key in before else value for key, value in content.items()}
        return {key: value for key, value in news.items() if key not in before or value}
    if isinstance(content, list) and isinstance(before, list):
        return _lacking(before, content)
    return None


def _update(content: MutableMapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        known = content.get(key)
        if isinstance(known, MutableMapping) and isinstance(value, Mapping):
            _update(known, value)
        elif isinstance(known, MutableSequence) and isinstance(value, list):
            add_missing(known, value)
        elif key not in content or known != value:
            content[key] = deepcopy(value)


def _lacking(known: Any, items: list[Any]) -> list[Any]:
    names = set(map(_name, known))
    return [item for item in items if _name(item) not in names]


def _name(item: Any) -> str:
    """Return the name of a list's item: of a map with one key, as in plots, the key."""
    return str(next(iter(item))) if isinstance(item, Mapping) and len(item) == 1 else str(item)


# Strings that YAML writes verbatim: without quotes, not numbers, and not folded while the line is short.
_WORD = re.compile(
    r"[A-Za-z][A-Za-z0-9_./@%+=,>()'\"$*&|;!{}\[\]~^<-]*(?: [A-Za-z0-9_./@%+=,>()'\"$*&|;!{}\[\]~^<-]+)*"
)
_HASH = re.compile(r"(?=[^.]*[acdf])[0-9a-f]{32}(\.dir)?")
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+")
_EXPONENT = re.compile(r"[0-9][eE][+-]?[0-9]")
_VALUE = rf"{_WORD.pattern}|{_HASH.pattern}|0|-?[1-9][0-9]*|{_FLOAT.pattern}"
_ENTRY_LINE = re.compile(
    rf"(?P<indent> +)(?:(?P<dash>- )?(?P<key>[A-Za-z][A-Za-z0-9_./@-]*):(?: (?P<value>{_VALUE}))?|- (?P<item>{_VALUE}))"
)
_NO_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_LINE = 80
# Of how many entries the anchors are remembered: each is written with every later one.
_KEPT = 2**14
# Where YAML writes an object that occurs again, and where it refers to it.
_ANCHOR = re.compile(r"(?<=[:-] )([&*]id)([0-9]{3,})$", flags=re.MULTILINE)


class _NotPlainError(Exception):
    """A value that YAML may not write verbatim."""


def yaml_text(data: dict[str, Any]) -> str:
    """Return the output of DVC's `dump_yaml`."""
    return _text(data, "")


def lock_entry(name: str, entry: dict[str, Any]) -> str:
    """Return the lines of a stage's entry in dvc.lock."""
    return _text({name: entry}, "  ")


def read_back(name: str, block: str) -> str:
    """Return a stage's lines as DVC writes them again with another stage's entry: as YAML reads them.

    YAML writes U+0085 unchanged, but reads it as a line end and so as a space.
    """
    return lock_entry(name, _parsed(f"stages:\n{block}")["stages"][name]) if "\x85" in block else block


def read_again(data: dict[str, Any]) -> dict[str, Any]:
    """Return a value after a round trip through DVC's YAML."""
    return _parsed(yaml_text(data))


def _parsed(text: str) -> dict[str, Any]:
    from dvc.utils.serialize import parse_yaml

    return dict(parse_yaml(text, ""))


def split_lock_file(text: str) -> dict[str, str] | None:
    """Return the lines of each stage in dvc.lock by name; None if the file is not in DVC's layout."""
    head = "schema: '2.0'\nstages:\n"
    body = text.removeprefix(head)
    if body == text or re.search(r"^(?:[^ \n]| [^ ])", body, flags=re.MULTILINE):
        return None
    blocks = re.split(r"^(?=  [^ \n])", body, flags=re.MULTILINE)
    if blocks[0]:
        return None
    named = {}
    for block in blocks[1:]:
        name, colon, rest = block.partition(":\n")
        if not (colon and rest.startswith(("    cmd: ", "    cmd:\n")) and _is_word(name[2:]) and block.endswith("\n")):
            return None
        named[name[2:]] = block
    return named


def are_as_dumped(blocks: dict[str, str]) -> bool:
    """Tell whether the entries of a dvc.lock have DVC's own layout: no comments, no other quotes."""
    return all(_is_plain_block(lines) or _is_as_dumped(name, lines) for name, lines in blocks.items())


def _is_plain_block(block: str) -> bool:
    """Tell, without a parser, whether an entry certainly has DVC's own layout; most have."""
    maps, lists, opens = [2], list[int](), True  # the columns of the mappings and lists around a line
    for line in block.splitlines()[1:]:
        match = _ENTRY_LINE.fullmatch(line)
        if not match or not _may_stand(match["key"] or "key", match["value"] or match["item"] or "value", line):
            return False
        at, starts_item = len(match["indent"]), bool(match["dash"] or match["item"])
        if opens:
            (lists if starts_item else maps).append(at)
            if at != (maps[-1] if starts_item else maps[-2] + 2):
                return False
        else:
            maps = [column for column in maps if column <= at]
            lists = [column for column in lists if column < at or (starts_item and column == at)]
            if at not in (lists if starts_item else maps)[-1:]:
                return False
        if starts_item and match["key"]:
            maps.append(at + 2)
        opens = bool(match["key"]) and match["value"] is None
    return not opens


def _may_stand(key: str, value: str, line: str) -> bool:
    is_short = len(line) <= _LINE or " " not in value
    return is_short and key.lower() not in _NO_WORDS and (value.lower() not in _NO_WORDS or value in ("true", "false"))


def _is_as_dumped(name: str, block: str) -> bool:
    from dvc.utils.serialize import YAMLFileCorruptedError, dumps_yaml, parse_yaml, parse_yaml_for_update

    text = f"stages:\n{block}"
    try:
        entry = parse_yaml(text, "")["stages"][name]
        if number_anchors([lock_entry(name, entry)]) != number_anchors([block]):
            return False
        # DVC keeps how a number was written, and may lose the last digit of one with an exponent.
        return not _EXPONENT.search(block) or bool(dumps_yaml(parse_yaml_for_update(text, "")) == text)
    except (YAMLFileCorruptedError, LookupError, TypeError):
        return False


def number_anchors(blocks: Iterable[str]) -> list[str] | None:
    """Number entries' YAML anchors as in one file; None if an entry's are not its own, or if a text looks like one."""
    plain_blocks, following = [], 1
    for block in blocks:
        numbers = _anchors(block) if "&id" in block or "*id" in block else frozenset()
        if numbers is None:
            return None
        if numbers:
            block = _shifted(block, following - min(numbers))
            following += len(numbers)
        plain_blocks.append(block)
    return plain_blocks


@lru_cache(_KEPT)
def _anchors(block: str) -> frozenset[int] | None:
    from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml

    try:
        is_same = parse_yaml(_shifted(block, 1000), "") == parse_yaml(block, "")
    except YAMLFileCorruptedError:  # an alias of another entry's anchor
        return None
    return frozenset(int(number) for _, number in _ANCHOR.findall(block)) if is_same else None


@lru_cache(_KEPT)
def _shifted(block: str, by: int) -> str:
    return _ANCHOR.sub(lambda match: f"{match[1]}{int(match[2]) + by:03}", block)


def join_lock_file(blocks: Iterable[str]) -> str:
    """Return dvc.lock's text."""
    return "schema: '2.0'\nstages:\n" + "".join(blocks)


def _text(data: dict[str, Any], indent: str) -> str:
    try:
        return "".join(_mapping(data, indent, set()))
    except _NotPlainError:
        from dvc.utils.serialize import dumps_yaml

        # One level deeper, as in dvc.lock: the indentation decides where long lines are folded.
        return dumps_yaml({"stages": data}).removeprefix("stages:\n") if indent else dumps_yaml(data)


def _mapping(data: dict[str, Any], indent: str, seen: set[int], first: str | None = None) -> Iterator[str]:
    """Yield a mapping's lines; the first line starts with `first`, which may be a list's dash."""
    if not data:
        raise _NotPlainError
    for key, value in data.items():
        word = _plain(key)
        if " " in word:
            raise _NotPlainError
        start = f"{indent if first is None else first}{word}:"
        first = None
        if isinstance(value, dict | list):
            _once(value, seen)
            yield f"{start}\n"
            yield from _mapping(value, indent + "  ", seen) if isinstance(value, dict) else _items(value, indent, seen)
        else:
            yield _line(f"{start} ", value)


def _items(values: list[Any], indent: str, seen: set[int]) -> Iterator[str]:
    if not values:
        raise _NotPlainError
    for value in values:
        if isinstance(value, dict):
            _once(value, seen)
            yield from _mapping(value, indent + "  ", seen, first=f"{indent}- ")
        else:
            yield _line(f"{indent}- ", value)


def _once(value: dict[Any, Any] | list[Any], seen: set[int]) -> None:
    # YAML would write a repeated object as an alias.
    if id(value) in seen:
        raise _NotPlainError
    seen.add(id(value))


def _line(start: str, value: Any) -> str:
    text = _plain(value)
    if len(start) + len(text) > _LINE and " " in text:
        raise _NotPlainError
    return f"{start}{text}\n"


def _plain(value: Any) -> str:
    if type(value) in (int, bool) or (type(value) is float and _FLOAT.fullmatch(str(value))):
        return str(value).lower()
    if type(value) is str and (_is_word(value) or _HASH.fullmatch(value)):
        return value
    raise _NotPlainError


def _is_word(text: str) -> bool:
    return len(text) < 120 and bool(_WORD.fullmatch(text)) and text.lower() not in _NO_WORDS
