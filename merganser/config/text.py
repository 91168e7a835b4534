"""The text of a `params.yaml`: values as YAML, the lines of keys, and edits that leave all other text as it is."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from merganser.errors import InputError, did_you_mean
from merganser.limits import parse_yaml

KeyPath = tuple[str, ...]  # the keys that lead to a value; the number of a list's item is one
AFTER = ("method", "learner", "kind", "source")  # keys that what follows from them is written after
ENTRIES = ("methods", "learned", "searches", "studies")  # sections in which maps by task stand
CHOICES = ("tokenizer", "chat_template")  # of a vocabulary: they may name a task


def value_at(content: Any, place: Sequence[str | int]) -> Any:
    """Return the value at a place in mappings and lists; None if there is none."""
    for key in place:
        is_item = isinstance(content, list) and isinstance(key, int) and key < len(content)
        content = content[key] if is_item else content.get(key) if isinstance(content, dict) else None
    return content


def as_line(key: str, value: Any) -> str:
    """Return a key and its value as a line of the file.

    >>> as_line("evaluation", {"split": "test", "batch_size": 64})
    'evaluation: {split: test, batch_size: 64}'
    """
    return as_flow({key: value})[1:-1]  # without the braces around the one key


def as_flow(value: Mapping[str, Any] | list[Any]) -> str:
    """Return a mapping or a list on one line, in braces or brackets."""
    return as_yaml(value, flow=True).strip()


def as_yaml(content: Mapping[str, Any] | list[Any], *, flow: bool = False) -> str:
    """Return content as YAML, one line per key; all on one line if `flow`."""
    text, yaml = io.StringIO(), YAML()
    yaml.default_flow_style, yaml.width = flow, 10_000
    yaml.dump(content, text)
    return text.getvalue()


def as_value(value: Any) -> str:
    """Return a value on one line, as it follows a key."""
    return as_flow([value])[1:-1]


def line_of(root: Node | None, place: KeyPath) -> int | None:
    """Return the line of the key at a place below a node, or of the nearest existing key above it."""
    line = None
    for part in place:
        if (pair := _pairs(root).get(part)) is None:
            break
        key, root = pair
        line = key.start_mark.line + 1
    return line


def with_values(text: str, values: Iterable[tuple[KeyPath, Any]]) -> str:
    """Return a text with these values at places in its mappings; all other text stays, byte for byte."""
    root, inside = YAML().compose(text), dict[KeyPath, dict[str, Any]]()
    for (*above, last), value in values:
        inside.setdefault(tuple(above), {})[last] = value
    edits = {edit for place, more in inside.items() for edit in _edits(text, root, place, more)}
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _edits(text: str, root: Node, place: KeyPath, more: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yield replacements of character ranges that give a section more keys, or other values."""
    node = root
    for part in place:
        name, node = _pairs(node)[part]
    present = _pairs(node)
    for key in present.keys() & more.keys():
        value = present[key][1]
        yield value.start_mark.index, value.end_mark.index, as_value(more[key])
    if missing := {key: value for key, value in more.items() if key not in present}:
        yield _edit(text, name, node, missing)


def _edit(text: str, name: Node, node: Node, more: dict[str, Any]) -> tuple[int, int, str]:
    """Return one replacement of a character range that gives a section more keys, or a null a value."""
    if not isinstance(node, MappingNode):
        start = text.index(":", name.end_mark.index) + 1
        return start, node.end_mark.index if node.value else start, f" {as_flow(more)}"
    lines, pairs = [as_line(key, value) for key, value in more.items()], _pairs(node)
    if not pairs:
        return node.start_mark.index, node.end_mark.index, as_flow(more)
    first = next(iter(pairs.values()))[0].start_mark
    between = ", " if node.flow_style else f"\n{' ' * first.column}"
    before = next((pairs[key][1] for key in AFTER if key in pairs), None)
    if before is None:
        return first.index, first.index, "".join(line + between for line in lines)
    end = before.end_mark.index
    if not node.flow_style:  # behind a comment too
        end = (text + "\n").index("\n", end)
    return end, end, "".join(between + line for line in lines)


def _pairs(node: Node | None) -> dict[str, tuple[Node, Node]]:
    """Return a mapping's keys and values by the keys' texts; of a list, each item twice, by number."""
    if isinstance(node, MappingNode):
        return {key.value: (key, value) for key, value in node.value if isinstance(key, ScalarNode)}
    items = node.value if isinstance(node, SequenceNode) else []
    return {str(number): (item, item) for number, item in enumerate(items)}


def renamed(text: str, old: str, new: str, where: str) -> str:
    """Return a file's text with a task's name replaced; `where`: the file, for messages.

    Raises InputError if there is no such task, the new name is taken, or the layout of the file is not supported.
    """
    content = parse_yaml(text, where)
    tasks = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(tasks, dict) or old not in tasks:
        raise InputError(f"{where}: no task is called {old!r}{did_you_mean(old, tasks or {})}")
    if new in tasks:
        raise InputError(f"{where}: a task is called {new!r} already; choose another name")
    root = YAML().compose(text)
    edits = sorted((node.start_mark.index, node.end_mark.index) for node in _named(root, old, set(tasks)))
    written = as_value(new)
    for start, end in reversed(edits):
        text = text[:start] + written + text[end:]
    parsed = parse_yaml(text, where)
    if list(parsed["tasks"]) != [new if name == old else name for name in tasks]:
        raise InputError(f"{where}: as it is laid out, {old} cannot be replaced; write {new} in its place yourself")
    return text


def _named(root: MappingNode, old: str, tasks: set[str]) -> Iterator[Node]:
    """Yield the places of a task's name in a file: keys of `tasks` and of maps by task, and values."""
    for section, node in root.value:
        if section.value == "tasks":
            yield from (key for key, _ in node.value if key.value == old)
        elif section.value in ENTRIES:
            yield from (key for each in _maps_by_task(node, tasks) for key, _ in each.value if key.value == old)
        elif section.value == "vocabularies":
            yield from (value for _, about in node.value for value in _choices(about) if value.value == old)


def _maps_by_task(node: Node, tasks: set[str]) -> Iterator[MappingNode]:
    """Yield a section's maps from task names to single values."""
    if isinstance(node, MappingNode):
        names = {key.value for key, _ in node.value}
        if names and names <= tasks and all(isinstance(value, ScalarNode) for _, value in node.value):
            yield node
    inside = [value for _, value in node.value] if isinstance(node, MappingNode) else node.value
    for inner in inside if isinstance(node, MappingNode | SequenceNode) else ():
        yield from _maps_by_task(inner, tasks)


def _choices(about: Node) -> Iterator[Node]:
    """Yield the tasks in a vocabulary: of its tokenizer, its template, and its rows."""
    for key, value in about.value if isinstance(about, MappingNode) else ():
        if key.value in CHOICES:
            yield value
        elif key.value == "rows" and isinstance(value, MappingNode):
            yield from (model for _, model in value.value)
