"""Give a task of a `params.yaml` another name, wherever the file names it; the rest of it stays as it is."""

from collections.abc import Iterator

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from merganser.config.explaining import as_flow
from merganser.errors import InputError, did_you_mean
from merganser.limits import parse_yaml

ENTRIES = ("methods", "learned", "searches", "studies")  # sections in which maps by task stand
CHOICES = ("tokenizer", "chat_template")  # of a vocabulary: they may name a task


def renamed(text: str, old: str, new: str, where: str) -> str:
    """Return a file's text with a task's name replaced; `where`: the file, for messages.

    Raises InputError where there is no such task, the new name is taken, or the file is laid out as no edit knows.
    """
    content = parse_yaml(text, where)
    tasks = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(tasks, dict) or old not in tasks:
        raise InputError(f"{where}: no task is called {old!r}{did_you_mean(old, tasks or {})}")
    if new in tasks:
        raise InputError(f"{where}: a task is called {new!r} already; choose another name")
    root = YAML().compose(text)
    edits = sorted((node.start_mark.index, node.end_mark.index) for node in _named(root, old, set(tasks)))
    written = as_flow({new: 0}).removeprefix("{").partition(": ")[0]
    for start, end in reversed(edits):
        text = text[:start] + written + text[end:]
    found = parse_yaml(text, where)
    if list(found["tasks"]) != [new if name == old else name for name in tasks]:
        raise InputError(f"{where}: as it is laid out, {old} cannot be replaced; write {new} in its place yourself")
    return text


def _named(root: MappingNode, old: str, tasks: set[str]) -> Iterator[Node]:
    """Give the places of a file that hold a task's name: keys of `tasks` and of maps by task, and values."""
    for section, node in root.value:
        if section.value == "tasks":
            yield from (key for key, _ in node.value if key.value == old)
        elif section.value in ENTRIES:
            yield from (key for each in _maps_by_task(node, tasks) for key, _ in each.value if key.value == old)
        elif section.value == "vocabularies":
            yield from (value for _, about in node.value for value in _choices(about) if value.value == old)


def _maps_by_task(node: Node, tasks: set[str]) -> Iterator[MappingNode]:
    """Give the maps from names of tasks to single values in a section."""
    if isinstance(node, MappingNode):
        names = {key.value for key, _ in node.value}
        if names and names <= tasks and all(isinstance(value, ScalarNode) for _, value in node.value):
            yield node
    inside = [value for _, value in node.value] if isinstance(node, MappingNode) else node.value
    for each in inside if isinstance(node, MappingNode | SequenceNode) else ():
        yield from _maps_by_task(each, tasks)


def _choices(about: Node) -> Iterator[Node]:
    """Give what a vocabulary says of tasks: whose tokenizer, whose template, whose rows."""
    for key, value in about.value if isinstance(about, MappingNode) else ():
        if key.value in CHOICES:
            yield value
        elif key.value == "rows" and isinstance(value, MappingNode):
            yield from (model for _, model in value.value)
