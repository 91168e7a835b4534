"""Sources: the origin of a checkpoint or a data set, and its transfer into a folder.

A source is a path: a checkpoint folder or file, an adapter's folder, a saved data set, or a *pointer file*, a few lines
of YAML that name something remote at a pinned revision, or files of an installed package. The fetched files are a pure
function of the source, and `source.json` has the source and their hashes.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from merganser.checkpoints.reading import DESCRIPTION
from merganser.errors import InputError, did_you_mean
from merganser.evaluation.data_sets import check_content, check_saved, load_saved, of_group
from merganser.hashes import sha256_of
from merganser.limits import check_file, check_link, parse_json, read_small
from merganser.sources.guarded import data_set_cache, hub_cache, in_hub_cache
from merganser.sources.hub import answering, download, hub_errors, hub_refusal, missing
from merganser.sources.hub_data import load_checked, rename_columns
from merganser.sources.installing import install_model, install_open_clip, set_padding
from merganser.sources.licences import downloaded_facts, facts_in, join_facts
from merganser.sources.pointers import (
    GroupPointer,
    HubPointer,
    OpenClipPointer,
    PackagePointer,
    Pointer,
    local_path,
    pinned,
    pointer_kind,
    read_pointer,
    repositories,
    verified_package_path,
)

CONFIGURATION = "configuration"  # column that says which of several configurations a row is of
FOLLOWED: Any = {"follow": True, "group": {"__all__": {"follow"}}}  # of a pointer: says nothing of the bytes that came
DataCheck = Callable[[Mapping[str, Any], Path], None]  # of the splits of a data set; refuses by its source


def fetch_checkpoint(source: Path, folder: Path, pad_token_id: int | None = None) -> dict[str, Any]:
    """Fetch a checkpoint into an empty folder: safetensors weights, configuration files, `source.json`.

    A single file of weights becomes `model.safetensors`, whatever its name and format; shards stay shards. An
    adapter's configuration and tensors are fetched, as `adapter_model.safetensors`. Returns what was left out, by
    kind. `pad_token_id` is written into the configuration.
    """
    pointer = read_pointer(source)
    left: dict[str, Any] = {}
    facts: Mapping[str, list[str]] = {}
    if isinstance(pointer, GroupPointer):
        raise InputError(f"{source}: a group is of data sets; a model is one repository")
    if isinstance(pointer, OpenClipPointer):
        facts = install_open_clip(pointer, source, folder)
    elif isinstance(pointer, HubPointer):
        with answering(source):
            origin, files = download(pointer, source)
        left = install_model(origin, source, folder, pointer.strip or "")
        left |= {"left_out": files} if files else {}
        facts = downloaded_facts(pointer, "model")
    else:
        origin = origin_of(pointer, source)
        left = install_model(origin, source, folder)
        facts = facts_in(origin)
    if pad_token_id is not None:
        set_padding(folder, pad_token_id)
    write_source_description(source, pointer, folder, left=left, facts=facts)
    return left


def fetch_data_set(source: Path, folder: Path, check: DataCheck, columns: Mapping[str, str] | None = None) -> None:
    """Fetch a data set into an empty folder as `datasets` saves it, with `source.json`.

    `check` refuses data of another kind of task; `columns`: new column names, and the old ones.
    """
    pointer = read_pointer(source)
    if isinstance(pointer, OpenClipPointer):
        raise InputError(f"{source}: open_clip names models, not data sets; point at a hub repository")
    named = repositories(pointer)
    if any(each.path or each.strip for each in named.values()):
        raise InputError(f"{source}: path and strip are for models; a data set's configuration is its `name`")
    if named:
        _save_hub_data_set(named, source, folder, check, columns or {})
        facts = join_facts(downloaded_facts(each, "dataset") for each in named.values())
    else:
        origin = origin_of(pointer, source)
        _copy_saved_data_set(origin, folder, check, columns or {})
        facts = facts_in(origin)
    write_source_description(source, pointer, folder, facts=facts)


def origin_of(pointer: Pointer | None, source: Path) -> Path:
    """Return the path of a source's files on this disk, with the version and digest in its pointer."""
    if isinstance(pointer, PackagePointer):
        return verified_package_path(pointer, source)
    assert pointer is None, f"{source}: {pointer_kind(pointer)} has no branch in origin_of"
    return source


def write_source_description(
    source: Path,
    pointer: Pointer | None,
    folder: Path,
    mean_of: Sequence[str] = (),
    left: Mapping[str, Any] | None = None,
    facts: Mapping[str, list[str]] | None = None,
) -> None:
    """Write `source.json`: the source as given and every fetched file's size and hash; no times or hosts.

    `mean_of`: the models whose mean the folder holds; `left`: what was left out; `facts`: licence, data and base
    model in its card.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    description: dict[str, Any] = {
        **description_of(source, pointer),
        **({"kind": "mean", "mean_of": list(mean_of)} if mean_of else {}),
        **(left or {}),
        **(facts or {}),
        "files": {
            path.relative_to(folder).as_posix(): {"sha256": sha256_of(path), "size": path.stat().st_size}
            for path in files
        },
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def description_of(source: Path, pointer: Pointer | None) -> dict[str, Any]:
    """Return the content of `source.json` before a source is fetched: the source as given, and its pointer's target."""
    if pointer is None:
        return {"source": str(source), "kind": "local"}
    kind = "hub" if repositories(pointer) else pointer_kind(pointer)
    return {"source": str(source), "kind": kind, **pointer.model_dump(exclude_none=True, exclude=FOLLOWED)}


def known_facts(source: Path) -> dict[str, list[str]]:
    """Return a model's licence facts from its folder, or from an earlier download; asks no hub."""
    pointer = read_pointer(source)
    if isinstance(pointer, HubPointer):
        return downloaded_facts(pointer, "model")
    place = local_path(source)
    return {} if place is None else facts_in(place)


def _copy_saved_data_set(source: Path, folder: Path, check: DataCheck, columns: Mapping[str, str]) -> None:
    check_saved(source)
    paths = sorted(source.rglob("*"))
    for path in paths:
        if path.exists() and not path.is_dir():
            check_file(path)
        check_link(path, source)
    loaded = load_saved(source)
    check_content(loaded, source)
    renamed = rename_columns(loaded, columns, source)
    check(renamed, source)
    if columns:
        _save(renamed, folder)
        return
    for path in paths:
        target = folder / path.relative_to(source)
        if path.is_dir():
            target.mkdir()
        elif path.is_file() and path != source / DESCRIPTION:
            shutil.copyfile(path, target)


def _save_hub_data_set(
    named: Mapping[str, HubPointer], source: Path, folder: Path, check: DataCheck, columns: Mapping[str, str]
) -> None:
    """Save the data set of a pointer, or the documents of a group."""
    with answering(source):
        loaded = {member: _load(pointer, source) for member, pointer in named.items()}
    try:
        members = {name: each.values() for name, each in loaded.items()}
        whole = _pooled(loaded[""]) if "" in loaded else of_group(members)
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: {error}") from error
    renamed = rename_columns(whole, columns, source)
    check(renamed, source)
    _save(renamed, folder)


def _load(pointer: HubPointer, source: Path) -> dict[str, Any]:
    """Load the chosen splits of a repository's data set, by configuration; '' if at most one is named."""
    from datasets import DatasetDict
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from huggingface_hub.errors import HTTPError

    revision = pinned(pointer, source)
    names = {name: name for name in pointer.name} if isinstance(pointer.name, list) else {"": pointer.name}
    try:
        with in_hub_cache():
            loaded = {key: load_checked(pointer, name, revision, source) for key, name in names.items()}
    except (DatasetNotFoundError, *hub_errors()) as error:
        raise InputError(missing(source, pointer.hub, revision, error)) from error
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:  # a data set that comes with a script, an unknown configuration
        raise InputError(f"{source}: {pointer.hub} cannot be loaded as a data set: {error}") from error
    except OSError as error:
        if refused := hub_refusal(source, pointer.hub, error):
            raise InputError(refused) from error
        raise
    except Exception as error:  # of cards and files of another form, a dozen kinds
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        if isinstance(cause, HTTPError | OSError | MemoryError):
            raise cause from error
        reason = next(iter(str(cause or error).splitlines()), type(cause).__name__)
        raise InputError(f"{source}: {pointer.hub} cannot be loaded as a data set: {reason}") from error
    taken = {}
    for key, splits in loaded.items():
        if not isinstance(splits, DatasetDict):
            raise InputError(f"{source}: {pointer.hub} is not a data set with named splits")
        chosen = pointer.splits or {split: split for split in splits}
        for own in chosen.values():
            if own not in splits:
                has = f"it has {', '.join(splits)}{did_you_mean(own, splits)}"
                raise InputError(f"{source}: splits: {pointer.hub} has no split {own!r}; {has}")
        check_content(splits, source, _stores(pointer))
        rows = {split: splits[own] for split, own in chosen.items()}
        if key:
            rows = {split: each.add_column(CONFIGURATION, [key] * len(each)) for split, each in rows.items()}
        taken[key] = DatasetDict(rows)
    return taken


def _stores(pointer: HubPointer) -> tuple[Path, Path]:
    """Return the folders of downloaded files and unpacked archives."""
    from datasets import config
    from huggingface_hub.file_download import repo_folder_name

    own = repo_folder_name(repo_id=pointer.hub, repo_type="dataset")
    return hub_cache() / own, data_set_cache() / config.DOWNLOADED_DATASETS_DIR


def _pooled(configurations: Mapping[str, Any]) -> Any:
    """Concatenate each split of a data set's configurations; raise ValueError if their columns differ."""
    from datasets import DatasetDict, concatenate_datasets

    shapes = {name: {split: rows.features for split, rows in each.items()} for name, each in configurations.items()}
    first, *others = shapes
    for name in others:
        if shapes[name] != shapes[first]:
            raise ValueError(f"the configurations {first} and {name} have other splits or columns")
    if not others:
        return configurations[first]
    return DatasetDict(
        {split: concatenate_datasets([each[split] for each in configurations.values()]) for split in shapes[first]}
    )


def _save(data: Any, folder: Path) -> None:
    """Save a data set with fingerprints of its content instead of `datasets`' own, for reproducible bytes."""
    data.save_to_disk(folder)
    for state in folder.glob("*/state.json"):
        content = parse_json(read_small(state))
        hashes = "".join(sha256_of(state.parent / file["filename"]) for file in content["_data_files"])
        content["_fingerprint"] = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        state.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
