"""The files beside the weights in a model's folder: configuration, tokenizer, chat template, licence.

Nothing that came with a checkpoint is run, so code stays behind; so do weights in other formats and what training left.

Modules of a model that have weights of their own, in folders beside it: a sentence encoder's `2_Dense`, projections.

They are further files of the model: the name of a tensor is its folder's, two slashes, and its own there.

Where a model came from, as far as its files say.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.reading import ADAPTER_CONFIG, ADAPTER_FILES, DESCRIPTION, open_stored
from merganser.checkpoints.tensors import IN_MODULE
from merganser.checkpoints.weight_files import KEY, both_in, is_index, main_in, weight_names, weights_in
from merganser.errors import InputError
from merganser.limits import check_files, check_link
from merganser.plugins import own_configurations

# What holds the whole model once more: hidden, in other formats, or as it was in training.
COPIES = re.compile(r"\..*|checkpoint-\d+|global_step\d+|original|onnx|openvino|gguf|mlx|coreml|flax", re.IGNORECASE)


def module_folders(folder: Path) -> list[str]:
    """Name the folders in a model's folder that hold weights of their own, and not those of the model once more."""
    if not folder.is_dir():
        return []
    having = [path for path in sorted(folder.iterdir()) if may_be_module(path)]
    if having:  # but for those that hold the model's own
        own = {PurePosixPath(name).parts[0] for name in weights_in(folder, os.listdir(folder))}
        having = [path for path in having if path.name not in own]
    whole = set(open_stored(folder).names) if having else set[str]()
    return [path.name for path in having if not whole.issuperset(open_stored(path).names)]


def may_be_module(path: Path) -> bool:
    """Tell by names alone whether a path in a model's folder is a folder with weights of its own."""
    if not path.is_dir() or COPIES.fullmatch(path.name):
        return False
    names = [file.name for file in path.iterdir() if file.is_file()]
    return bool(weight_names(names)) and ADAPTER_CONFIG not in names


def shared_modules(models: Iterable[Path]) -> list[str]:
    """Name the modules that all models have: of some folders and files."""
    first, *others = [module_folders(path) for path in models]
    return [name for name in first if all(name in own for own in others)]


def modules_in(names: Iterable[str]) -> Sequence[str]:
    """Name the modules that tensors of these names are in."""
    return list(dict.fromkeys(name.partition(IN_MODULE)[0] for name in names if IN_MODULE in name))


@dataclass(frozen=True)
class ModelOrigin:
    """A source's name, the sha256 of each file that its weights are read from, and what its card says of it.

    `kind`: `local`, `mean`, or that of its pointer.

    `licences`: ids as hubs have them, or the name that stands beside the id `other`; where the card gives none, what
    the first lines of a licence file beside it name, or that file. `datasets`: what it was trained on.

    No revision: the same bytes at another revision are the same model, and nothing need be merged anew.
    """

    name: str
    kind: str = "local"
    files: Mapping[str, str] = field(default_factory=dict)
    licences: Sequence[str] = ()
    datasets: Sequence[str] = ()


def model_origin(folder: Path) -> ModelOrigin:
    """Return the origin of a fetched model, as its `source.json` describes it."""
    return described_origin(json.loads((folder / DESCRIPTION).read_text()))


def described_origin(description: Mapping[str, Any]) -> ModelOrigin:
    """Return the origin of a model by what its `source.json` says, or will say."""
    kind = description["kind"]
    names = {
        "open_clip": f"{description.get('open_clip')}, {description.get('pretrained')}",
        "package": f"{description.get('package')} {description.get('version')}",
        "mean": f"the mean of {', '.join(description.get('mean_of', []))}",
    }
    files = {
        name: about["sha256"]
        for name, about in description["files"].items()
        if name.endswith(".safetensors") or name == ADAPTER_CONFIG
    }
    licences, datasets = licences_in(description), list(description.get("datasets", []))
    name = names.get(kind) or description.get(kind) or description["source"]
    return ModelOrigin(name, kind, files, licences, datasets)


def licences_in(facts: Mapping[str, Any]) -> list[str]:
    """Return the licences that facts of a source give: its card's, else those of the licence files beside it."""
    ids, own = facts.get("license", []), facts.get("license_name", [])
    if not ids or (ids == ["other"] and not own):
        return list(facts.get("license_in_file") or facts.get("license_file") or ids)
    return list(own if ids == ["other"] else ids)


SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".vocab", ".bpe", ".spm")
LICENCES = re.compile(r"(licen[cs]e|notice|copying|use_policy)([._-].*)?", re.IGNORECASE)
NOT_OURS = re.compile(
    r"\.git.*|readme(\..*)?", re.IGNORECASE
)  # neither kept nor worth a word: a merge has its own card
# Folders of a sentence encoder's further modules, and of a tokenizer's further chat templates.
FOLDERS = re.compile(r"([0-9]+_\w+|additional_chat_templates)")
MODULES = "modules.json"  # of sentence-transformers: a list of what its models compute one after another
CODE_KEY = "auto_map"
CONFIGURATIONS = (
    *(CONFIG, "generation_config.json"),
    *("tokenizer_config.json", "preprocessor_config.json", "processor_config.json"),
)


def companion_names(names: Collection[str], modules: Sequence[str] = ()) -> list[str]:
    """Pick what a model needs beside its weights from the names in its folder, those in folders as `folder/name`.

    `modules`: folders whose weights are the model's own.
    """
    inside: dict[str, list[str]] = {}
    for place, _, own in (name.rpartition("/") for name in sorted(names)):
        if FOLDERS.fullmatch(place) and place not in modules:
            inside.setdefault(place, []).append(own)
    weights = {f"{place}/{own}" for place, files in inside.items() for own in weight_names(files)}
    return [name for name in sorted(names) if name in weights or _is_companion(name, modules)]


def left_out(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """List what is not taken along from a model's folder, but for what every repository has."""
    return [
        name for name in sorted(names) if name not in taken and not NOT_OURS.fullmatch(name) and name != DESCRIPTION
    ]


def list_model_files(folder: Path, modules: Sequence[str] = ()) -> list[str]:
    """List the files of a model's folder, and those in the folders that may belong to it, or are modules of it.

    Raises InputError where one is not a plain file.
    """
    mine = [path for path in folder.iterdir() if path.is_dir()]
    inner = [path for path in mine if FOLDERS.fullmatch(path.name) or path.name in modules]
    for place in (folder, *inner):
        check_files(place)
    files = [path for place in (folder, *inner) for path in place.iterdir() if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def other_folders(folder: Path) -> list[str]:
    """List the folders in a model's folder that do not belong to it, such as `onnx/`; none that is hidden.

    Those inside the ones that belong to it are among them.
    """
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    known = [path for path in folders if FOLDERS.fullmatch(path.name)]
    inner = [path for place in known for path in place.iterdir() if path.is_dir()]
    others = [path for path in (*folders, *inner) if path not in known]
    return sorted(f"{path.relative_to(folder).as_posix()}/" for path in others)


def copy_companions(origin: Path, folder: Path, modules: Sequence[str] = ()) -> None:
    """Copy what a model needs beside its weights; of a single file's folder, the configuration that it is read by.

    `modules`: folders whose weights are the model's own, and are left.
    """
    place = origin if origin.is_dir() else origin.parent
    for name in companion_names(list_model_files(origin, modules) if origin.is_dir() else [CONFIG], modules):
        if (place / name).is_file():
            check_link(place / name, place)
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(place / name, folder / name)
    if KEY in (config := read_config(folder / CONFIG) or {}):  # what is written has the usual name
        del config[KEY]
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def check_model(path: Path) -> None:
    """Refuse a model that must not be read: the door before everything that reads a model's folder or file.

    Raises InputError for a link that leads out of the folder, for a whole model beside an adapter, and for a
    configuration that asks for code of its own or has a number that no model has.
    """
    if path.is_dir():
        check_files(path)
        _refuse_links(path)
        names = [file.name for file in path.iterdir() if file.is_file()]
        if (both := both_in(names, main_in(path, set(names) - set(ADAPTER_FILES)))) is not None:
            raise InputError(f"{path}: {both}")
    place = path if path.is_dir() else path.parent
    for name in (*CONFIGURATIONS, *described_elsewhere().values()):
        content = read_config(place / name) or {}
        if CODE_KEY in content:
            raise InputError(
                f"{place / name}: {CODE_KEY!r} asks for code that came with the checkpoint; such code is never run"
            )


def described_elsewhere() -> dict[str, str]:
    """Return, by family, the file that it reads instead of config.json."""
    return {family: file for family, file in own_configurations().items() if file != MODULES}


def _refuse_links(folder: Path) -> None:
    """Refuse links that lead out of a folder, in it and in the folders within that are read; hidden files are not."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            check_link(path, folder)
        elif FOLDERS.fullmatch(path.name) or may_be_module(path):
            for inside in (path, *sorted(path.iterdir())):
                check_link(inside, folder)
    for name in weights_in(folder, [path.name for path in folder.iterdir() if path.is_file()]):
        check_link(folder / name, folder)


def _is_companion(name: str, modules: Sequence[str]) -> bool:
    place, _, own = name.rpartition("/")
    if place:
        known = place in modules or FOLDERS.fullmatch(place) is not None
        return known and own.endswith(SUFFIXES) and not is_index(own)
    kept = own.endswith(SUFFIXES) and not is_index(own)
    return own != DESCRIPTION and (kept or LICENCES.fullmatch(own) is not None)
