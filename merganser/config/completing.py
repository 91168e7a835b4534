"""Complete a params.yaml: documented defaults, and values that follow from a method.

DVC's stages depend on keys of the file, and its templates cannot look anything up, so the file must have all of them.
Text that people wrote stays, byte for byte.
"""

import copy
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from merganser.config.inputs import FROM_VALIDATION, INPUTS, SECTIONS, input_of
from merganser.config.inputs.base import described_method, known_method
from merganser.config.mistakes import Mistake
from merganser.config.params import Params, Validation
from merganser.config.sections import OWN_MODELS, STUDIED, UNMEASURED, VOCABULARIES, Studies, Task, Unseen
from merganser.config.text import KeyPath, as_line, value_at, with_values
from merganser.errors import InputError, did_you_mean, some
from merganser.limits import parse_yaml
from merganser.methods import __path__ as places
from merganser.plugins import FAMILIES, constants, module_names

Addition = tuple[KeyPath, Any]  # where, and what is to stand there
BUDGETED = ("studies", "budgets", "methods")
HEADER = "# left out above, and so by default (docs/params.md):"
READ = ("family", "heads", "kind", "source", "columns")  # keys read of the files of sources, said with their values
PICTURES = Task.model_fields["kind"].default  # the kind of a task that names none
TEMPLATES = ["a photo of a {}."]  # of the classes of pictures, as CLIP's authors write for ImageNet's
SHOWN = 8  # places in the line that says what was written


def additions(content: Any, folder: Path | None = None) -> list[Addition]:
    """List the keys that a file lacks and that DVC or an entry needs; keys that cannot be inferred are left out.

    `folder`: the root of relative sources; None: the sources' files are not read.
    """
    if not isinstance(content, dict):
        return []
    read = [] if folder is None else list(_from_sources(content, folder))
    content = filled(content, read)
    defaults = [*read, *_sections(content)]
    for place in (("methods",), *STUDIED):
        entries = value_at(content, place)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            defaults += _entry(content, (*place, name), entry)
    for name, task in _named(content, "tasks"):
        if task.get("kind") == UNMEASURED and "data" not in task and "source" in task:
            defaults.append((("tasks", name, "data"), {"source": task["source"]}))  # DVC needs a path
    for name, task in _named(content, "unseen"):
        if "head" not in task:
            defaults.append((("unseen", name, "head"), Unseen.model_fields["head"].default))
    for section in SECTIONS:
        for name, about in _named(content, section):
            if "of" not in about and (of := INPUTS[section].of_by_default(about)):
                defaults.append(((section, name, "of"), of))
    return defaults


def filled(content: Any, added: Sequence[Addition]) -> Any:
    """Return a file's content with additions."""
    content = copy.deepcopy(content) if added else content
    for (*above, last), value in added:
        if above and value_at(content, above) is None:
            value_at(content, above[:-1])[above[-1]] = {}
        value_at(content, above)[last] = value
    return content


def completed(text: str, where: str, folder: Path | None = None) -> tuple[str, list[Addition]]:
    """Return a file's text with the additions written into it, and the additions; raise InputError if it is not YAML.

    `folder`: as in `additions`.
    """
    content = parse_yaml(text, where)
    added = additions(content, folder)
    if not added:
        return text, []
    text = with_values(text, [each for each in added if len(each[0]) > 1])
    lines = [as_line(place[0], value) for place, value in added if len(place) == 1]
    if lines:
        text = "\n".join([text.rstrip("\n"), "", HEADER, *lines, ""])
    if not _holds(text, filled(content, added)):
        wanted = "\n".join(as_line(".".join(place), value) for place, value in added)
        raise InputError(f"{where}: the missing values cannot be inserted into this layout; add:\n{wanted}")
    return text, added


def _holds(text: str, content: Any) -> bool:
    try:
        return bool(parse_yaml(text, "") == content)
    except InputError:
        return False


def addition_names(added: Sequence[Addition]) -> str:
    """Name the sections and entries of additions, the first of many, and all values read from the sources' files."""
    read = [as_line(".".join(place), value) for place, value in added if place[-1] in READ and len(place) > 1]
    parts = [value for place, value in added if place == ("parameters",) and value.keys() == {"merged"}]
    read += [as_line("parameters.merged", value["merged"]) for value in parts]  # the default has `matrices` too
    if asked := [place[1] for place, value in added if place[-1] == "templates"]:
        read.append(f"{as_line('templates', TEMPLATES)} of {some(asked)}")
    others = [place for place, _ in added if place[-1] not in (*READ, "templates") or len(place) == 1]
    places = list(dict.fromkeys(".".join(place[:-1] or place) for place in others))
    return ", ".join(filter(None, [*read, some(places, SHOWN)]))


def _from_sources(content: dict[str, Any], folder: Path) -> Iterator[Addition]:
    """List sources below ~, which DVC does not expand, with their full paths, and values from sources' files."""
    base = content.get("base")
    places: list[tuple[KeyPath, Any]] = [(("base",), base), *_tasks(content)]
    places += [((*place, "data"), task.get("data")) for place, task in places[1:]]
    places += [(("vocabularies", name), each) for name, each in _named(content, "vocabularies")]
    home = [
        ((*place, "source"), os.path.expanduser(source))
        for place, about in places
        if isinstance(about, dict) and isinstance(source := about.get("source"), str) and source.startswith("~")
    ]
    yield from home
    content = filled(content, home)
    family = value_at(content, ("base", "family"))
    if isinstance(base, dict) and "family" not in base and (source := _model_of(content)):
        from merganser.config.inferring import family_of  # imports torch, as the next does

        tuned = [each for _, task in _named(content, "tasks") if isinstance(each := task.get("source"), str)]
        family = family_of(folder / source, [folder / each for each in tuned])
        if family is not None:
            yield ("base", "family"), family
    if not isinstance(family, str):
        return
    from_data = [each for place, task in _tasks(content) for each in _from_data(place, task, family, folder)]
    yield from from_data
    if isinstance(base, dict) and "heads" not in base and (heads := _heads(filled(content, from_data), folder)):
        yield ("base", "heads"), heads
    named = "parameters" in content or "MERGED" in constants(FAMILIES, family)
    if not named and (here := _models_here(content, folder)):
        from merganser.config.inferring import pattern_in_all

        if pattern := pattern_in_all(*here):
            yield ("parameters",), {"merged": [pattern]}


def _heads(content: dict[str, Any], folder: Path) -> list[str]:
    """Return the patterns of heads that every task's model has and the base lacks; empty if they differ."""
    from merganser.config.inferring import heads_beyond, needs_head

    here = _models_here(content, folder)
    if not here or not all(needs_head(task.get("kind")) for _, task in _named(content, "tasks")):
        return []
    return heads_beyond(*here)


def _models_here(content: dict[str, Any], folder: Path) -> tuple[Path, list[Path]] | None:
    """Return the base and the tasks' models; None if one of them is not here, or if the base is their mean."""
    source, sources = _model_of(content), [task.get("source") for _, task in _named(content, "tasks")]
    is_mean = Path(str(value_at(content, ("base", "source")))) == OWN_MODELS
    if source is None or is_mean or not all(isinstance(each, str) and (folder / each).exists() for each in sources):
        return None
    return folder / source, [folder / str(each) for each in sources]


def _from_data(place: KeyPath, task: dict[str, Any], family: str, folder: Path) -> Iterator[Addition]:
    """List values that follow from a task's data and the family: kind, column names and templates."""
    data = task.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("source"), str) or task.get("kind") == UNMEASURED:
        return
    from merganser.config.inferring import compares_with_texts, infer_columns, infer_task_kind

    kind = task.get("kind", PICTURES if "templates" in data or compares_with_texts(family) else None)
    if kind == PICTURES and "templates" not in data and compares_with_texts(family):
        yield (*place, "data", "templates"), TEMPLATES
        data = data | {"templates": TEMPLATES}
    if kind is None and (inferred := infer_task_kind(data, family, folder / data["source"])):
        yield (*place, "kind"), inferred
    elif columns_read := infer_columns(kind, data, family, folder / data["source"]):
        if kind is None:
            yield (*place, "kind"), columns_read[0]
        yield (*place, "data", "columns"), columns_read[1]


def _tasks(content: dict[str, Any]) -> list[tuple[KeyPath, dict[str, Any]]]:
    """List the tasks and the unseen tasks, each with its place."""
    return [((section, name), task) for section in ("tasks", "unseen") for name, task in _named(content, section)]


def _model_of(content: dict[str, Any]) -> str | None:
    """Return the source of a model with the base's architecture: the base, or for a mean the first task's."""
    source = value_at(content, ("base", "source"))
    if isinstance(source, str) and Path(source).parent == VOCABULARIES:
        source = value_at(content, ("vocabularies", Path(source).name, "source"))
    if isinstance(source, str) and Path(source) == OWN_MODELS:
        source = next((task.get("source") for _, task in _named(content, "tasks")), None)
    return source if isinstance(source, str) else None


def missing_model(content: dict[str, Any], folder: Path) -> list[Mistake]:
    """Return the place of a missing model whose files would tell the base's family."""
    base, source = content.get("base"), _model_of(content)
    if not isinstance(base, dict) or "family" in base or source is None or (folder / source).exists():
        return []
    reason = (
        f"{source} does not exist, so the family cannot be read from its files; correct the path, or name the family"
    )
    return [Mistake(("base", "source"), reason)]


def tasks_without_kind(content: dict[str, Any], folder: Path) -> dict[KeyPath, str]:
    """Return for each task whose kind cannot be inferred from its data, by place, what the data lacks."""
    family, advice = value_at(content, ("base", "family")), dict[KeyPath, str]()
    for place, task in _tasks(content) if isinstance(family, str) else ():
        data = task.get("data")
        if "kind" not in task and isinstance(data, dict) and "templates" not in data:
            from merganser.config.inferring import kind_advice  # imports torch

            source = data.get("source")
            if isinstance(source, str) and (text := kind_advice(data, family, folder / source)):
                advice[place] = text
    return advice


def _sections(content: dict[str, Any]) -> Iterator[Addition]:
    """List missing sections, and missing keys of existing ones, that a stage depends on."""
    family = constants(FAMILIES, value_at(content, ("base", "family")))
    merged = list(family.get("MERGED", Params.model_fields["parameters"].default.merged))
    for key in ("seed", "parameters", "decompose", "merge", "evaluation"):
        default = Params.model_fields[key].default
        value = default if key == "seed" else default.model_dump(exclude_none=True)
        value = value | {"merged": merged} if key == "parameters" else value
        given = content.get(key)
        if key not in content:
            yield (key,), value
        elif isinstance(given, dict):
            needed = {"parameters": "merged", "evaluation": "split"}.get(key)
            if needed and needed not in given:
                yield (key, needed), value[needed]
    reading = [*(content.get(section) for section in FROM_VALIDATION), value_at(content, ("studies", "ablations"))]
    if "validation" not in content and any(reading):
        yield ("validation",), Validation().model_dump()
    for study, key in (("tasks", "subsets"), ("continual", "orders"), ("budgets", "at")):
        given = value_at(content, ("studies", study))
        if isinstance(given, dict) and key not in given:
            yield ("studies", study, key), value_at(Studies().model_dump(), (study, key))
    budgets = value_at(content, ("studies", "budgets"))
    if isinstance(budgets, dict) and "methods" not in budgets:
        yield BUDGETED, _with_parts(content)


def _entry(content: dict[str, Any], place: KeyPath, entry: Any) -> Iterator[Addition]:
    """List an entry's missing keys: its method, which its name may give, and the method's inputs."""
    given = {} if entry is None else entry
    if not isinstance(given, dict):
        return
    name, methods = str(place[-1]), module_names(places)
    more: dict[str, Any] = {}
    if "method" not in given and (not given or name in methods or _misspelt(name, methods)):
        more["method"] = name
    wanted = given.get("method", more.get("method"))
    if "reads" not in given and isinstance(wanted, str):
        more["reads"] = _reads(content, wanted)
    yield from (((*place, key), value) for key, value in more.items())


def _misspelt(name: str, methods: Collection[str]) -> bool:
    """Tell whether an entry's name is nearly a method's name, and not such a name with a suffix."""
    return not name.startswith(tuple(f"{each}_" for each in methods)) and bool(did_you_mean(name, methods))


def _with_parts(content: dict[str, Any]) -> dict[str, Any]:
    """Return entries with parts per task for a budget study, without the values that decide their size."""
    whole = {}
    for name, given in _named(content, "methods"):
        entry = {place[-1]: value for place, value in _entry(content, (name,), given)} | given
        described = described_method(entry.get("method"))
        if (
            described is not None
            and described.overlay
            and not described.at_run_time
            and described.family != "references"
        ):
            method = known_method(described.name)
            fitted = method.within.parameters if method and method.within else ()
            whole[name] = {key: value for key, value in entry.items() if key not in fitted}
    return whole


def _reads(content: dict[str, Any], name: str) -> str:
    """Return a method's input, with the name of a declared one if there is just one; deltas for an unknown method."""
    method = described_method(name)
    if method is None:
        return "deltas"
    section = input_of(method).name
    fitting = [each for each, about in _named(content, section) if INPUTS[section].fits(about, method)]
    return f"{section}/{fitting[0]}" if len(fitting) == 1 else section


def _named(content: dict[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    inside = content.get(section)
    return [(name, each) for name, each in inside.items() if isinstance(each, dict)] if isinstance(inside, dict) else []
