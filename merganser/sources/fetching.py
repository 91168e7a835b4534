"""Sources: where a checkpoint or a data set comes from, and how it is brought into a folder of its own.

A source is a path: a checkpoint folder or file, an adapter's folder, a saved data set, or a *pointer file*, a few
lines of YAML that name something remote at a pinned revision. What is fetched is a pure function of the source, and
`source.json` beside it says what it was and which bytes came.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from merganser.checkpoints.adapters.files import adapter_names, open_model
from merganser.checkpoints.reading import ADAPTER_FILES, DESCRIPTION, config_names, open_checkpoint
from merganser.checkpoints.safetensors_file import HEADER_LIMIT
from merganser.checkpoints.writing import write_checkpoint
from merganser.errors import InputError
from merganser.evaluation.images import check_pictures
from merganser.evaluation.saved import load_saved
from merganser.hashes import sha256_of
from merganser.limits import check_link, parse_json, read_small, read_yaml
from merganser.sources.columns import rename_columns

POINTER_SUFFIXES = (".yaml", ".yml")
SHARDS = ("*.safetensors.index.json", "*-of-*.safetensors")
# In order of preference; the first whose patterns match is taken, so that no format is fetched twice.
WEIGHTS = (
    ("model.safetensors",),
    ("open_clip_model.safetensors",),
    SHARDS,
    ("pytorch_model.bin",),
    ("open_clip_pytorch_model.bin",),
)


class HubPointer(BaseModel):
    """Names a repository of a Hugging Face hub at one commit; `name` picks one of a data set's configurations.

    `follow` names a branch or tag, whose commit `merganser run` writes into the file as the revision when it starts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    hub: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="a full commit, not a branch")] | None = None
    follow: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")] | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if self.revision is None and self.follow is None:
            raise ValueError("needs a revision, a full 40-digit commit, or a branch to follow")
        return self


class OpenClipPointer(BaseModel):
    """Names a pretrained model by open_clip's own tags."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    open_clip: str
    pretrained: str


Pointer = HubPointer | OpenClipPointer
DataCheck = Callable[[Mapping[str, Any], Path], None]  # of the splits of a data set; refuses by its source


def read_pointer(source: Path) -> Pointer | None:
    """Read a pointer file; return None for anything that lies here itself; raise InputError for a bad pointer."""
    if not source.exists():
        raise InputError(f"{source}: no such source; give a folder, a file, or a pointer file ({{hub, revision}})")
    if source.suffix not in POINTER_SUFFIXES or source.is_dir():
        return None
    content = read_yaml(source)
    if not isinstance(content, dict) or not {"hub", "open_clip"} & content.keys():
        raise InputError(f"{source}: a pointer says either {{hub, revision}} or {{open_clip, pretrained}}")
    kind: type[Pointer] = HubPointer if "hub" in content else OpenClipPointer
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise InputError(_explain(source, error)) from error


def _explain(source: Path, error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if not key:
        return f"{source}: {problem['ctx']['error']}"
    if key == "revision" and problem["type"] == "string_pattern_mismatch":
        moves = "branches and tags move: `follow` names one"
        return f"{source}: revision: must be a full 40-digit commit, got {problem['input']!r}; {moves}"
    return f"{source}: {key}: {problem['msg']}, got {problem['input']!r}"


def fetch_checkpoint(source: Path, folder: Path) -> None:
    """Bring a checkpoint into an empty folder: safetensors weights, configuration files, `source.json`.

    One file of weights becomes `model.safetensors`, whatever its name and kind were; shards keep theirs. Of an adapter
    come its configuration and its tensors, as `adapter_model.safetensors`.
    """
    pointer = read_pointer(source)
    if isinstance(pointer, OpenClipPointer):
        _install_open_clip(pointer, source, folder)
    elif isinstance(pointer, HubPointer):
        _install_folder(_hub_snapshot(pointer, source), source, folder)
    elif source.is_dir():
        _install_folder(source, source, folder)
    else:
        _install_weights(source, folder / "model.safetensors")
    describe(source, pointer, folder)


def fetch_data_set(source: Path, folder: Path, check: DataCheck, columns: Mapping[str, str] | None = None) -> None:
    """Bring a data set into an empty folder as `datasets` saves it, with `source.json` beside it.

    `check` refuses one that is not of the task's kind; `columns`: what a column is renamed to, and from.
    """
    pointer = read_pointer(source)
    if isinstance(pointer, OpenClipPointer):
        raise InputError(f"{source}: open_clip names models, not data sets; point at a hub repository")
    if pointer is None:
        _copy_saved_data_set(source, folder, check, columns or {})
    else:
        _save_hub_data_set(pointer, source, folder, check, columns or {})
    describe(source, pointer, folder)


def describe(source: Path, pointer: Pointer | None, folder: Path, mean_of: Sequence[str] = ()) -> None:
    """Write `source.json`: the source as it was given and every fetched file's size and hash; no times, no hosts.

    `mean_of`: the models in the source whose mean the folder holds.
    """
    kind: Literal["local", "hub", "open_clip", "mean"] = "mean" if mean_of else "local"
    if pointer is not None:
        kind = "hub" if isinstance(pointer, HubPointer) else "open_clip"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    description: dict[str, Any] = {
        "source": str(source),
        "kind": kind,
        **(pointer.model_dump(exclude_none=True, exclude={"follow"}) if pointer else {}),
        **({"mean_of": list(mean_of)} if mean_of else {}),
        "files": {
            path.relative_to(folder).as_posix(): {"sha256": sha256_of(path), "size": path.stat().st_size}
            for path in files
        },
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def weight_names(names: Collection[str]) -> list[str]:
    """Pick the files that hold a checkpoint's weights from the names in its folder; none when there are none."""
    for patterns in WEIGHTS:
        matches = [[name for name in sorted(names) if fnmatchcase(name, pattern)] for pattern in patterns]
        if all(matches):
            return [name for group in matches for name in group]
    single = [name for name in sorted(names) if name.endswith((".safetensors", ".bin", ".pt", ".pth"))]
    return single if len(single) == 1 else []


def _install_folder(origin: Path, source: Path, folder: Path) -> None:
    names = [path.name for path in origin.iterdir() if path.is_file()]
    if adapter := adapter_names(names):
        _install_adapter(origin, adapter, folder)
        return
    weights = weight_names(names)
    if not weights:
        raise InputError(f"{source}: no weights found; expected one of {', '.join(p[0] for p in WEIGHTS)}")
    if len(weights) == 1:
        check_link(origin / weights[0], origin)
        _install_weights(origin / weights[0], folder / "model.safetensors")
    else:
        _install_shards(origin, weights, folder)
    for name in config_names(names):
        _copy(origin, name, folder)


def _install_adapter(origin: Path, names: list[str], folder: Path) -> None:
    config, tensors = names
    open_model(origin)  # refuses what is more than a low-rank update
    _copy(origin, config, folder)
    check_link(origin / tensors, origin)
    _install_weights(origin / tensors, folder / ADAPTER_FILES[0])


def _install_weights(file: Path, target: Path) -> None:
    """Copy one whole safetensors file, or rewrite torch weights (loaded as plain tensors only) as safetensors."""
    checkpoint = open_checkpoint(file)
    if file.suffix == ".safetensors":
        shutil.copyfile(file, target)
    else:
        specs = {name: checkpoint.spec(name) for name in checkpoint.names}
        write_checkpoint(target, specs, ((name, checkpoint.read(name)) for name in checkpoint.names))


def _install_shards(origin: Path, names: list[str], folder: Path) -> None:
    index, *shards = names
    open_checkpoint(origin / index)  # refuses missing, truncated and misplaced shards
    used = set(parse_json(read_small(origin / index, HEADER_LIMIT))["weight_map"].values())
    for name in [index, *(shard for shard in shards if shard in used)]:
        _copy(origin, name, folder)


def _copy(origin: Path, name: str, folder: Path) -> None:
    check_link(origin / name, origin)
    shutil.copyfile(origin / name, folder / name)


def _pinned(pointer: HubPointer, source: Path) -> str:
    if pointer.revision is None:
        raise InputError(
            f"{source}: follows {pointer.follow}, and has no revision yet; `merganser run` writes it there"
        )
    return pointer.revision


def hub_errors() -> tuple[type[Exception], ...]:
    """Return what the hub's client raises for what the hub does not have, or does not show."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    return RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError


def _hub_snapshot(pointer: HubPointer, source: Path) -> Path:
    """Download a checkpoint's weights and configuration into the hub's own cache; return the folder."""
    from huggingface_hub import HfApi, RepoFile, snapshot_download

    endpoint, revision = os.environ.get("HF_ENDPOINT"), _pinned(pointer, source)
    try:
        tree = HfApi(endpoint=endpoint).list_repo_tree(pointer.hub, revision=revision)
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        names = adapter_names(files) or [*weight_names(files), *config_names(files)]
        if not adapter_names(files) and not weight_names(files):
            raise InputError(f"{source}: {pointer.hub} has no weights at {revision[:12]} in a format we read")
        snapshot = Path(snapshot_download(pointer.hub, revision=revision, allow_patterns=names, endpoint=endpoint))
    except hub_errors() as error:
        raise InputError(missing(source, pointer.hub, revision)) from error
    _check_download(snapshot, {name: files[name] for name in names})
    return snapshot


def missing(source: Path, hub: str, revision: str) -> str:
    """Say that the hub does not have, or does not show, a repository at a revision."""
    return (
        f"{source}: the hub has no {hub} at revision {revision}, or does not show it to you; "
        "check the spelling, and set HF_TOKEN if it is private or gated"
    )


def _check_download(snapshot: Path, expected: Mapping[str, Any]) -> None:
    """Compare what was downloaded with what the hub announced; take a bad file out of the download cache."""
    for name, entry in expected.items():
        path = (snapshot / name).resolve()
        whole = path.stat().st_size == entry.size and (entry.lfs is None or sha256_of(path) == entry.lfs.sha256)
        if not whole:
            path.unlink()
            raise OSError(f"{name}: the download does not match the hub's checksum and was removed; run it again")


def _install_open_clip(pointer: OpenClipPointer, source: Path, folder: Path) -> None:
    """Fetch one of open_clip's pretrained models by open_clip's own downloader, with the configuration it implies."""
    import open_clip

    known = open_clip.list_pretrained()
    if (pointer.open_clip, pointer.pretrained) not in known:
        near = get_close_matches(f"{pointer.open_clip} {pointer.pretrained}", [f"{m} {t}" for m, t in known])
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(f"{source}: open_clip has no {pointer.open_clip} pretrained as {pointer.pretrained}{hint}")
    pretrained = open_clip.get_pretrained_cfg(pointer.open_clip, pointer.pretrained)
    _install_weights(Path(open_clip.download_pretrained(pretrained)), folder / "model.safetensors")
    model = open_clip.get_model_config(pointer.open_clip)
    if pretrained.get("quick_gelu"):
        model["quick_gelu"] = True  # the tag says which activation it was trained with; the bare model name does not
    image = {key: pretrained[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in pretrained}
    config = {"model_cfg": model, "preprocess_cfg": image}
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _copy_saved_data_set(source: Path, folder: Path, check: DataCheck, columns: Mapping[str, str]) -> None:
    if not (source / "dataset_dict.json").is_file():
        raise InputError(f"{source}: no saved data set; expected a folder written by DatasetDict.save_to_disk")
    loaded = load_saved(source)
    renamed = rename_columns(loaded, columns, source)
    check(renamed, source)
    check_pictures(loaded, source)
    if columns:
        _save(renamed, folder)
        return
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        check_link(path, source)
        if path.is_dir():
            target.mkdir()
        elif path.is_file() and path != source / DESCRIPTION:
            shutil.copyfile(path, target)


def _save_hub_data_set(
    pointer: HubPointer, source: Path, folder: Path, check: DataCheck, columns: Mapping[str, str]
) -> None:
    from datasets import DatasetDict, config, load_dataset
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import constants

    revision = _pinned(pointer, source)
    try:
        loaded = load_dataset(pointer.hub, pointer.name, revision=revision)
    except (DatasetNotFoundError, *hub_errors()) as error:
        raise InputError(missing(source, pointer.hub, revision)) from error
    except (RuntimeError, ValueError) as error:  # a data set that comes with a script, an unknown configuration
        raise InputError(f"{source}: {pointer.hub} cannot be loaded as a data set: {error}") from error
    if not isinstance(loaded, DatasetDict):
        raise InputError(f"{source}: {pointer.hub} is not a data set with named splits")
    renamed = rename_columns(loaded, columns, source)
    check(renamed, source)
    check_pictures(loaded, source, (config.HF_DATASETS_CACHE, constants.HF_HUB_CACHE))
    _save(renamed, folder)


def _save(data: Any, folder: Path) -> None:
    data.save_to_disk(folder)
    for state in folder.glob("*/state.json"):
        _settle_fingerprint(state)


def _settle_fingerprint(state: Path) -> None:
    """Replace the fingerprint `datasets` draws anew at every load by one of the content: same input, same bytes."""
    content = parse_json(read_small(state))
    hashes = "".join(sha256_of(state.parent / file["filename"]) for file in content["_data_files"])
    content["_fingerprint"] = hashlib.sha256(hashes.encode()).hexdigest()[:16]
    state.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
