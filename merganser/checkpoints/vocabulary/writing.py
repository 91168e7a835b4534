"""Write models in one vocabulary: new tables, and the files of the merge's tokenizer; links to all other weights.

A merge then finds tables in one order, and needs to know nothing about tokens.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.files import Adapter, Update
from merganser.checkpoints.architecture import CONFIG_LIMIT, known_ties, read_object
from merganser.checkpoints.companions import copy_companions, module_folders
from merganser.checkpoints.reading import CHANGED, DESCRIPTION, open_checkpoint, open_stored, place_of
from merganser.checkpoints.tensors import DTYPES, NAMES_OF_DTYPES, Checkpoint, Spec, StoredCheckpoint, spec_of
from merganser.checkpoints.vocabulary.plan import BASE, Member, OneVocabulary, TokenizerChoice, in_one_vocabulary
from merganser.checkpoints.vocabulary.rows import arranged
from merganser.checkpoints.vocabulary.tokenizers import (
    GENERATION,
    apply_token_settings,
    check_written,
    take_template,
    take_tokenizer,
    token_settings,
    write_union,
)
from merganser.checkpoints.weight_files import ADAPTER_CONFIG, ADAPTER_FILES, MODEL, SINGLE
from merganser.checkpoints.writing import write_single
from merganser.errors import InputError
from merganser.limits import check_link

Made = tuple[Spec, Callable[[], Tensor]]  # a tensor that is made when it is written


def write_linked(stored: StoredCheckpoint, changed: Mapping[str, Made], folder: Path) -> None:
    """Write a checkpoint into a folder: changed tensors as new files, and links to the others.

    Each tensor stays in its shard; one that the checkpoint lacks is written next to any. Raises InputError if the
    weights are in no files that can be linked.
    """
    files = {name: _file(stored, name) for name in stored.names}
    files |= dict.fromkeys(changed.keys() - files.keys(), next(iter(files.values())))
    index: dict[str, str] = {}
    for number, path in enumerate(sorted(set(files.values()))):
        place = path.name if path.name not in SINGLE else f"weights{path.suffix}"
        place = f"{number}-{place}" if (folder / place).is_symlink() else place  # shards in several folders
        (folder / place).symlink_to(path.resolve())
        own = [name for name in files if files[name] == path]
        made = {name: changed[name] for name in own if name in changed}
        if made:
            tensors = ((name, make()) for name, (_, make) in made.items())
            write_single(folder / f"{place}{CHANGED}", {name: spec for name, (spec, _) in made.items()}, tensors)
        index |= {name: f"{place}{CHANGED if name in made else ''}" for name in own}
    (folder / f"{MODEL}.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")


def _file(stored: StoredCheckpoint, name: str) -> Path:
    place = place_of(stored, name)
    if place is None:
        raise InputError(f"{name}: is not in a separate file; save the model as safetensors first")
    return place[0].path


VOCABULARY = "vocabulary"  # in a fetched base's description: that it was brought into one, and by which rules


def write_models(plan: OneVocabulary, folder: Path) -> tuple[Path | None, dict[str, Path]]:
    """Write the models in their vocabulary; return the folders of the base, None without one, and the tasks.

    Each keeps its path inside the new folder, so that the parts of the path still name it.
    """
    reference = _place(folder / "base", plan.lead)
    _write_reference(plan, reference)
    written = {}
    for task in plan.tasks:
        if plan.has_base and task.folder.resolve() == plan.lead.folder.resolve():
            written[task.name] = reference
            continue
        written[task.name] = _place(folder / f"of-{task.name}", task)
        write_member(plan, task, reference, written[task.name])
    return (reference if plan.has_base else None), written


def write_like(base: Path, rules: Iterable[str], name: str, model: Path, folder: Path) -> Path:
    """Write a model in the base's vocabulary; return its place inside the folder.

    `rules`: the tokens whose rows are the base's by a rule.
    """
    plan = in_one_vocabulary(base, {name: model}, TokenizerChoice(BASE, dict.fromkeys(rules, BASE)))
    place = _place(folder, plan.tasks[0])
    write_member(plan, plan.tasks[0], base, place)
    return place


def write_like_base(base: Path, name: str, model: Path, folder: Path) -> Path:
    """Write a fetched model in the vocabulary of its base; return the model's new place."""
    said = (read_object(base / DESCRIPTION, CONFIG_LIMIT) or {}).get(VOCABULARY)
    return model if said is None else write_like(base, said["rows"], name, model, folder)


def write_with_template(model: Path, template: Path, folder: Path) -> None:
    """Write a model with another one's chat template."""
    _copy_beside(model, folder)
    write_linked(open_stored(model), {}, folder)
    take_template(template, folder)


def write_member(plan: OneVocabulary, member: Member, reference: Path, folder: Path) -> None:
    """Write a task's model, or its adapter, in the vocabulary of a written reference."""
    rows = open_checkpoint(reference)
    if isinstance(member.model, Adapter):
        shutil.copyfile(member.folder / ADAPTER_CONFIG, folder / ADAPTER_CONFIG)
        _write_adapter(plan, member, member.model, rows, folder / ADAPTER_FILES[0])
    else:
        _copy_beside(member.folder, folder)
        stored, dtypes = open_stored(member.folder), {name: rows.spec(name).dtype for name in plan.axes}
        tables = {
            place: (
                _spec(plan, stored.spec(own), plan.axes[name], dtypes[name]),
                partial(_table, plan, member, (name, own), rows),
            )
            for place, (name, own) in stored_tables(member, member.model).items()
            if not plan.has_all(member)
        }
        write_linked(stored, tables, folder)
        apply_token_settings(folder, _settings(plan))
    take_tokenizer(reference, folder)


def _copy_beside(model: Path, folder: Path) -> None:
    """Copy the files next to a model's weights, and modules with weights of their own."""
    copy_companions(model, folder)
    for module in module_folders(model):
        (folder / module).mkdir(exist_ok=True)
        for file in (file for file in (model / module).iterdir() if file.is_file()):
            check_link(file, model)
            shutil.copyfile(file, folder / module / file.name)


def stored_tables(member: Member, model: Checkpoint) -> dict[str, tuple[str, str]]:
    """Return, for each table to write for a model, the reference's table and the model's own that holds its rows.

    A tied table's second name gets the same rows, unless the model stores a separate weight under it. A table that the
    model ties and the reference does not is written under both names, since the rows added to each differ.
    """
    tables: dict[str, tuple[str, str]] = {}
    for table, own in sorted(member.tables.items(), key=lambda pair: _alike(*pair)):
        tables[own] = (table, own)
    for alias, source in {**known_ties(model.names), **model.dropped}.items():
        if source in tables:
            alike = (table for table, own in member.tables.items() if own == source and _alike(table, alias))
            holds = alias if alias in model else source
            tables.setdefault(alias, (next(alike, tables[source][0]), holds))
    written = {table for table, _ in tables.values()}
    return tables | {table: (table, own) for table, own in member.tables.items() if table not in written}


def _alike(one: str, other: str) -> bool:
    return one.endswith(other) or other.endswith(one)


def _place(folder: Path, member: Member) -> Path:
    place = folder.joinpath(*member.folder.resolve().parts[1:])
    place.mkdir(parents=True)
    return place


def _write_reference(plan: OneVocabulary, folder: Path) -> None:
    """Write the base with rows for all tokens, and with the merge's tokenizer."""
    assert isinstance(plan.lead.model, Checkpoint)
    _copy_beside(plan.lead.folder, folder)
    stored = open_stored(plan.lead.folder)
    tables = {
        own: (_spec(plan, stored.spec(own), plan.axes[name], stored.spec(own).dtype), partial(plan.reference, name))
        for own, (name, _) in stored_tables(plan.lead, plan.lead.model).items()
        if not (plan.has_base and plan.has_all(plan.lead))
    }
    write_linked(stored, tables, folder)
    if plan.new:
        write_union(plan.lead.folder, {each.name: each.folder for each in plan.tasks}, plan.new, folder)
    elif plan.chosen is not plan.lead:
        take_tokenizer(plan.chosen.folder, folder)
    if plan.template is not plan.chosen:
        take_template(plan.template.folder, folder)
    if (plan.chosen.folder / GENERATION).is_file() and not (folder / GENERATION).is_file():
        (folder / GENERATION).write_text("{}", encoding="utf-8")
    apply_token_settings(folder, _settings(plan))
    check_written(folder, plan.chosen.folder, {**plan.chosen.vocabulary, **plan.new})


def _settings(plan: OneVocabulary) -> Mapping[str, Mapping[str, object]]:
    numbers = {key: row for row, key in enumerate(plan.keys) if isinstance(key, str)}
    return token_settings(plan.chosen.folder, plan.lead.folder, numbers, len(plan.keys))


def _spec(plan: OneVocabulary, spec: Spec, axis: int, dtype: str) -> Spec:
    """Return the spec of a table next to a reference of this dtype: its dtype holds the rows of both."""
    shape = (*spec.shape[:axis], len(plan.keys), *spec.shape[axis + 1 :])
    return Spec(NAMES_OF_DTYPES[torch.promote_types(DTYPES[spec.dtype], DTYPES[dtype])], shape)


def _table(plan: OneVocabulary, member: Member, names: tuple[str, str], reference: Checkpoint) -> Tensor:
    """Return a whole model's table in the vocabulary's order; `names`: the reference's table, and the model's own."""
    assert isinstance(member.model, Checkpoint)
    axis = plan.axes[names[0]]
    return arranged(member.model.read(names[1]), plan.places(member), reference.read(names[0]), axis)


def _write_adapter(plan: OneVocabulary, member: Member, adapter: Adapter, reference: Checkpoint, path: Path) -> None:
    """Write an adapter's tensors, with tables in the vocabulary's order; rows that it lacks do not change."""
    tensors = {name: adapter.tensors.read(name) for name in adapter.tensors.names}
    for name, own in member.tables.items():
        update, axis = adapter.updates[own], plan.axes[name]
        if update.whole:
            tensors[update.whole] = arranged(tensors[update.whole], plan.places(member), reference.read(name), axis)
        for key, rows in _changes(update, axis).items():
            change = tensors[key]
            nothing = change.new_zeros(*change.shape[:rows], len(plan.keys), *change.shape[rows + 1 :])
            tensors[key] = arranged(change, plan.places(member), nothing, rows)
    write_single(path, {name: spec_of(tensor) for name, tensor in tensors.items()}, tensors.items())


def _changes(update: Update, axis: int) -> dict[str, int]:
    """Return an update's tensors with a row for each token, and the dimension of the rows."""
    b, a = update.factors or (None, None)
    places = {a: 1} if update.transposed else {b: 0}
    return {key: place for key, place in {**places, update.added: axis}.items() if key}
