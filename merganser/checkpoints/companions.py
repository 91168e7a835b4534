"""The files next to the weights in a model's folder: configuration, tokenizer, chat template, licence.

Code, weights in other formats and leftovers of training stay behind. A model's modules may have weights in folders of
their own, such as a sentence encoder's `2_Dense`: a tensor's name then starts with the folder.
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
    """Name the subfolders of a model's folder with modules' weights, and not the model's weights in another format."""
    if not folder.is_dir():
        return []
    having = [path for path in sorted(folder.iterdir()) if may_be_module(path)]
    if having:  # but for those that hold the model's own
        own = {PurePosixPath(name).parts[0] for name in weights_in(folder, os.listdir(folder))}
        having = [path for path in having if path.name not in own]
    whole = set(open_stored(folder).names) if having else set[str]()
    return [path.name for path in having if not whole.issuperset(open_stored(path).names)]


def may_be_module(path: Path) -> bool:
    """Tell by names alone whether a path in a model's folder is the folder of a module's weights."""
    if not path.is_dir() or COPIES.fullmatch(path.name):
        return False
    names = [file.name for file in path.iterdir() if file.is_file()]
    return bool(weight_names(names)) and ADAPTER_CONFIG not in names


def shared_modules(models: Iterable[Path]) -> list[str]:
    """Name the modules that all models have, for folders and files."""
    first, *others = [module_folders(path) for path in models]
    return [name for name in first if all(name in own for own in others)]


def modules_in(names: Iterable[str]) -> Sequence[str]:
    """Name the modules that tensors with these names belong to."""
    return list(dict.fromkeys(name.partition(IN_MODULE)[0] for name in names if IN_MODULE in name))


@dataclass(frozen=True)
class ModelOrigin:
    """A source's name, the sha256 of each of its weight files, and the facts in its card.

    `kind`: `local`, `mean`, or that of its pointer. `licences`: ids as hubs have them, or the name that follows the id
    `other`; if the card gives none, the licence that the first lines of a licence file name, or that file. There is no
    revision: the same bytes at another revision are the same model, and nothing need be merged again.
    """

    name: str
    kind: str = "local"
    files: Mapping[str, str] = field(default_factory=dict)
    licences: Sequence[str] = ()
    datasets: Sequence[str] = ()


def model_origin(folder: Path) -> ModelOrigin:
    """Return the origin of a fetched model, from its `source.json`."""
    return described_origin(json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")))


def described_origin(description: Mapping[str, Any]) -> ModelOrigin:
    """Return the origin of a model from the content of its `source.json`."""
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
    """Return the licences of a source: its card's, or else those of its licence files."""
    ids, own = facts.get("license", []), facts.get("license_name", [])
    if not ids or (ids == ["other"] and not own):
        return list(facts.get("license_in_file") or facts.get("license_file") or ids)
    return list(own if ids == ["other"] else ids)


SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".vocab", ".bpe", ".spm")
LICENCES = re.compile(r"(licen[cs]e|notice|copying|use_policy)([._-].*)?", re.IGNORECASE)
NOT_OURS = re.compile(r"\.git.*|readme(\..*)?", re.IGNORECASE)  # neither kept nor named: a merge has its own card
# Folders of a sentence encoder's further modules, and of a tokenizer's further chat templates.
FOLDERS = re.compile(r"([0-9]+_\w+|additional_chat_templates)")
MODULES = "modules.json"  # of sentence-transformers: a list of what its models compute one after another
CODE_KEY = "auto_map"
CONFIGURATIONS = (
    *(CONFIG, "generation_config.json"),
    *("tokenizer_config.json", "preprocessor_config.json", "processor_config.json"),
)


def companion_names(names: Collection[str], modules: Sequence[str] = ()) -> list[str]:
    """Return the files that a model needs next to its weights, of the names in its folder and subfolders.

    `modules`: folders with weights of the model.
    """
    inside: dict[str, list[str]] = {}
    for place, _, own in (name.rpartition("/") for name in sorted(names)):
        if FOLDERS.fullmatch(place) and place not in modules:
            inside.setdefault(place, []).append(own)
    weights = {f"{place}/{own}" for place, files in inside.items() for own in weight_names(files)}
    return [name for name in sorted(names) if name in weights or _is_companion(name, modules)]


def left_out(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """List files of a model's folder that are not copied, without those that every repository has."""
    others = sorted(name for name in names if name not in taken and name != DESCRIPTION)
    return [name for name in others if not NOT_OURS.fullmatch(name)]


def list_model_files(folder: Path, modules: Sequence[str] = ()) -> list[str]:
    """List the files of a model's folder, and of subfolders that may belong to it or are its modules.

    Raises InputError for anything but plain files.
    """
    mine = [path for path in folder.iterdir() if path.is_dir()]
    inner = [path for path in mine if FOLDERS.fullmatch(path.name) or path.name in modules]
    for place in (folder, *inner):
        check_files(place)
    files = [path for place in (folder, *inner) for path in place.iterdir() if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def other_folders(folder: Path) -> list[str]:
    """List subfolders of a model's folder that do not belong to it, such as `onnx/`; hidden ones are left out.

    This includes folders inside those that belong to it.
    """
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    known = [path for path in folders if FOLDERS.fullmatch(path.name)]
    inner = [path for place in known for path in place.iterdir() if path.is_dir()]
    others = [path for path in (*folders, *inner) if path not in known]
    return sorted(f"{path.relative_to(folder).as_posix()}/" for path in others)


def copy_companions(origin: Path, folder: Path, modules: Sequence[str] = ()) -> None:
    """Copy the files that a model needs next to its weights; for a single file, the configuration that reads it.

    `modules`: folders with weights of the model, which are not copied.
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
    """Refuse a model that must not be read; call it before anything reads a model's folder or file.

    Raises InputError for a link out of the folder, for a whole model next to an adapter, and for a configuration
    that needs code of its own or has an impossible number.
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
    """Return the file that each family reads instead of config.json."""
    return {family: file for family, file in own_configurations().items() if file != MODULES}


def _refuse_links(folder: Path) -> None:
    """Refuse links that lead out of a folder, in it and in subfolders that are read; hidden files are not read."""
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
    kept = own.endswith(SUFFIXES) and not is_index(own)
    if place:
        return kept and (place in modules or FOLDERS.fullmatch(place) is not None)
    return own != DESCRIPTION and (kept or LICENCES.fullmatch(own) is not None)
