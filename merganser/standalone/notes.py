"""Notes about a merge: what it takes from the base unchanged, and what of the models it lacks."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from merganser.checkpoints.adapters.files import Adapter, adapter_names
from merganser.checkpoints.companions import companion_names, left_out, list_model_files, module_folders, other_folders
from merganser.checkpoints.kinds import ParameterRules, is_head
from merganser.checkpoints.reading import wrappers_of
from merganser.checkpoints.tensors import parameter_of
from merganser.checkpoints.weight_files import weight_names, weights_in
from merganser.errors import some
from merganser.inputs.model_deltas import ModelDeltas

SHOWN = 8


def notes_on_parameters(deltas: ModelDeltas) -> list[str]:
    """Name tensors that are copied from the base, and tensors that are not written."""
    copied = dict.fromkeys(parameter_of(name) for name in deltas.base.names if name not in deltas.all_kinds)
    second = sorted(deltas.base.dropped)
    listed = {
        "copied from the base": copied,
        "second names of tied weights and constants, left out": second,
        "wrappers of training in the base's names, left out": sorted(wrappers_of(deltas.base)),
    }
    return _listed(listed)


def notes_on_patterns(deltas: ModelDeltas, rules: ParameterRules) -> list[str]:
    """Name patterns that match no parameter of the base and the models: one may be misspelt."""
    names = {*deltas.base.names, *deltas.base.dropped}
    for model in deltas.models.values():
        names.update(model.updates if isinstance(model, Adapter) else model.names)
    patterns = (*rules.merged, *rules.heads)
    unused = [pattern for pattern in patterns if not any(is_head(name, [pattern]) for name in names)]
    return _listed({"patterns that match no parameter": unused})


def notes_on_files(
    base: Path, models: Mapping[str, Path], modules: Sequence[str], owner: str = "the base"
) -> list[str]:
    """Name the files of the models' folders that are merged, copied and left out.

    `modules`: the merged ones. `owner`: the owner of the folder `base`, a model if there is no base.
    """
    if not base.is_dir():
        return []
    names, kept = list_model_files(base, modules), [name for name in module_folders(base) if name not in modules]
    inside = [f"{module}/{name}" for module in modules for name in weight_names(os.listdir(base / module))]
    read = weights_in(base, names)
    places = {f"{PurePosixPath(name).parts[0]}/" for name in read}
    folders = [folder for folder in other_folders(base) if folder not in places]
    left = left_out(names, {*read, *companion_names(names, modules), *inside}) + folders
    listed = {
        "modules, merged too": [f"{name}/" for name in modules],
        f"modules that not all models have, copied from {owner}": [f"{n}/" for n in kept if f"{n}/" not in left],
        f"left out of {owner}'s folder": [name for name in left if name.rstrip("/") not in modules],
    }
    for task, path in models.items():
        own = [f"{name}/" for name in module_folders(path) if name not in (*modules, *kept)]
        listed[f"{task}: modules that the base has not, left out"] = own
        listed[f"{task}: weights that are not read"] = _not_read(path)
    return _listed(listed)


def _not_read(path: Path) -> list[str]:
    """List safetensors files in a model's folder that its reader ignores, such as a head's."""
    names = list_model_files(path) if path.is_dir() else []
    read = {*adapter_names(names), *weights_in(path, names)} if names else set[str]()
    return [name for name in names if name.endswith(".safetensors") and "/" not in name and name not in read]


def _listed(names_of: Mapping[str, Collection[str]]) -> list[str]:
    return [f"{what}: {some(list(names), SHOWN)}" for what, names in names_of.items() if names]
