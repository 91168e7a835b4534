"""The names of a classifier's classes, wherever a checkpoint's configuration has them: heads are merged row by row.

transformers writes `id2label`, timm `label_names` (and `label_descriptions` of them), in `pretrained_cfg` too, others
`classes`, `class_names` or `class_to_idx`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.kinds import EMBEDDINGS, HEADS, NORMS, ParameterRules, is_head, is_merged
from merganser.checkpoints.remedies import without
from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError

Labels = Mapping[str, Sequence[str]]  # by the part of a model that they are of, '' for the whole

# In the order in which they are taken: a list, or a mapping of numbers to names; then the other way round.
BY_NUMBER = (
    *("id2label", "label_names", "labels", "label_list", "class_names", "class_labels", "classes", "categories"),
    *("names", "idx_to_class", "idx2class", "id_to_class", "id2class", "index_to_label", "id_to_label"),
)
BY_NAME = ("label2id", "class_to_idx", "class2idx", "class_to_id", "class2id", "label_to_index", "label_to_id")
DESCRIPTIONS = "label_descriptions"  # by name, of timm
WHOLE = "pretrained_cfg"  # what timm keeps of the whole model
CLASSIFIER = "classifier"  # in it: the module, or the modules, that the classes are of
ALIKE = re.compile(r"(.+\.)?(heads?|head_\w+|\w+_head|fc|classif\w*|last_linear|logits|output_layer)(\..+)?")
DIGITS = re.compile(r"(.+\.)?\d+(\..+)?")  # a part of a name: of a block among others


def class_labels(folder: Path) -> dict[str, list[str]] | None:
    """Read the names of a model's classes in their order, by its parts; None where they are only numbered."""
    found = dict(_labels_in(read_config(folder / CONFIG) or {}, ""))
    return found or None


def _labels_in(config: Mapping[str, Any], place: str) -> Iterator[tuple[str, list[str]]]:
    """Give the class names of a configuration, and of the parts in it."""
    inner = {key: value for key, value in config.items() if isinstance(value, dict)}
    whole = {**inner.get(WHOLE, {}), **config}
    if (named := _named(whole)) is not None:
        yield place, named
    for key, value in inner.items():
        if key in (*BY_NUMBER, *BY_NAME):
            for head, own in value.items():  # a mapping for each of several heads
                if isinstance(own, dict) and (named := _named({key: own})) is not None:
                    yield f"{place}{head}.", named
        elif key != WHOLE:
            yield from _labels_in(value, f"{place}{key}.")


def _named(config: Mapping[str, Any]) -> list[str] | None:
    """Return the class names that a configuration states at its top."""
    for key in BY_NUMBER:
        if (names := _in_order(config.get(key))) is not None:
            return _described(names, config.get(DESCRIPTIONS))
    for key in BY_NAME:
        numbers = config.get(key)
        if isinstance(numbers, dict) and all(type(number) is int for number in numbers.values()):
            return _in_order({str(number): name for name, number in numbers.items()})
    said = config.get(DESCRIPTIONS)
    if isinstance(said, dict):
        numbered = all(str(key).isdigit() for key in said)
        return _in_order(said if numbered else list(said))
    return _in_order(said)


def _in_order(named: Any) -> list[str] | None:
    """Return class names by their numbers; None for what is no such list, and for names that are only numbers."""
    if isinstance(named, dict) and all(str(number).isdigit() for number in named):
        named = [name for _, name in sorted(named.items(), key=lambda item: int(item[0]))]
    if not isinstance(named, list) or not named or not all(isinstance(name, str | int) for name in named):
        return None
    numbered = all(str(name) == f"LABEL_{number}" for number, name in enumerate(named))
    return None if numbered else [str(name) for name in named]


def _described(names: list[str], said: Any) -> list[str]:
    """Return the descriptions of names that are only numbers, where each has one."""
    if isinstance(said, dict) and all(name.isdigit() and isinstance(said.get(name), str) for name in names):
        return [said[name] for name in names]
    return names


def check_head_labels(
    who: str,
    ours: Labels,
    theirs: Labels,
    task: str,
    folder: Path,
    opened: tuple[Checkpoint, Any],
    rules: ParameterRules,
) -> None:
    """Refuse heads that are merged although their rows are classes of other names.

    `folder`: the model's; `opened`: the base, and the model, an adapter or a checkpoint.
    """
    base, model = opened
    if not isinstance(model, Checkpoint):
        return
    named = _modules_named(read_config(folder / CONFIG) or {})
    for part in (part for part in ours if ours[part] != theirs.get(part, ours[part])):
        heads = [
            name
            for name in base.names
            if name in model
            and is_merged(name, base.spec(name).dtype, rules)
            and base.spec(name).shape[:1] == model.spec(name).shape[:1] == (len(theirs[part]),)
            and _is_head(name, len(base.spec(name).shape), named)
        ]
        if heads:
            pairs = enumerate(zip_longest(ours[part], theirs[part]))
            number, (first, own) = next(each for each in pairs if each[1][0] != each[1][1])
            raise InputError(
                f"{task}: row {number} of {heads[0]} is the class {own!r}, that of {who} {first!r}: no "
                f"merge of them means anything; {without(heads, base.names, rules)}"
            )


def _modules_named(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the modules that timm's configuration calls the classifier."""
    whole = config.get(WHOLE)
    said = {**(whole if isinstance(whole, dict) else {}), **config}.get(CLASSIFIER)
    return tuple(str(name) for name in (said if isinstance(said, list) else [said] if said else []))


def _is_head(name: str, dimensions: int, modules: Sequence[str]) -> bool:
    """Tell whether a parameter with a row for each class is a head's, by its name: one of no block, if by no other."""
    if is_head(name, HEADS) or ALIKE.fullmatch(name) or name.startswith(tuple(f"{module}." for module in modules)):
        return True
    return dimensions > 1 and not DIGITS.fullmatch(name) and not is_head(name.lower(), (*NORMS, *EMBEDDINGS))
