"""Copy or convert a model into a folder: its weights as safetensors, in one file or its shards, and its other files.

Models in llama.cpp's format (GGUF) are read by transformers and written dequantised. It trusts the file's counts and
offsets, so these are checked before, and that all values were read after.
"""

import json
import os
import shutil
import struct
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from merganser.checkpoints.adapters.files import adapter_names, open_model
from merganser.checkpoints.architecture import CONFIG, check_numbers, read_config, read_object
from merganser.checkpoints.bounded import bounded
from merganser.checkpoints.companions import check_model, companion_names, copy_companions, left_out, list_model_files
from merganser.checkpoints.reading import (
    ADAPTER_FILES,
    ShardedCheckpoint,
    open_checkpoint,
    open_stored,
    wrappers_of,
    written_as,
)
from merganser.checkpoints.tensors import GGUF, Checkpoint, SafetensorsFile
from merganser.checkpoints.views import View, stored_specs
from merganser.checkpoints.vocabulary.tokenizers import take_tokenizer
from merganser.checkpoints.weight_files import MODEL, USUAL, main_file, main_in, weight_map, weights_in, written_like
from merganser.checkpoints.writing import shards_like, write_model
from merganser.errors import MALFORMED, InputError, quoting, refusing
from merganser.limits import check_file, check_link
from merganser.sources.guarded import guard, in_hub_cache
from merganser.sources.licences import CARD, read_facts
from merganser.sources.pointers import OpenClipPointer

VERSIONS = (2, 3)
VALUES = 2**22  # in all arrays of the header: each becomes objects of some hundred bytes
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by the type of a value
CONSTANTS = ("rope_", ".attn_rot_embd", ".rope_freqs")  # in names of tensors that are computed, and not learned
AGAIN = "fetch it again"
OUTPUT = "output.weight"  # left out, or there again, in a model that ties it to the input
SUFFIX = ".gguf"
INSTALL = "a GGUF file, which transformers reads by the package gguf: pip install 'merganser[gguf]'"


def gguf_in(path: Path) -> Path | None:
    """Return a llama.cpp model's file: this one, or the only one in a folder without other weights."""
    if path.is_dir():
        files = sorted(path.glob(f"*{SUFFIX}"))
        alone = len(files) == 1 and main_file([file.name for file in path.iterdir() if file.is_file()]) is None
        return files[0] if alone else None
    if not path.is_file():
        return None
    with path.open("rb") as opened:
        return path if opened.read(len(GGUF)) == GGUF else None


def write_dequantised(file: Path, folder: Path) -> str:
    """Write a llama.cpp model as transformers reads it, in float32, with configuration and tokenizer, to a folder.

    Returns what was done. Raises InputError if the package `gguf` is missing, or if transformers does not know the
    architecture.
    """
    check_file(file)
    if find_spec("gguf") is None:
        raise InputError(f"{file}: {INSTALL}")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    values = check_gguf(file)
    place, named = str(file.parent), {"gguf_file": file.name, "trust_remote_code": False}
    unread = f"{file}: transformers cannot read it"
    with quoting(unread):
        config = AutoConfig.from_pretrained(place, **named)
    check_numbers(config.to_dict(), file)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with quoting(unread), bounded(sum(values.values()), len(values)):
        loaded: Any = kind.from_pretrained(place, output_loading_info=True, ignore_mismatched_sizes=True, **named)
    model, loading = loaded
    _check_all_read(file, values, model, loading)
    with quoting(unread):
        del model.config.quantization_config  # of what was read; with it transformers writes no model
        model.hf_quantizer = None
        model.save_pretrained(folder)
    done = f"read by transformers from {file.name}, dequantised to float32"
    try:
        AutoTokenizer.from_pretrained(place, **named).save_pretrained(folder)
    except Exception as error:  # it knows those of four kinds
        return f"{done}, without the tokenizer ({next(iter(str(error).splitlines()), type(error).__name__)})"
    return done


def check_gguf(file: Path) -> dict[str, int]:
    """Return the number of values of each tensor in a GGUF file; raise InputError if the file is cut off."""
    with refusing(f"{file}: not a whole GGUF file", AGAIN, (*MALFORMED, struct.error)):
        with file.open("rb") as opened:
            _check_header(opened)
        from gguf import GGUFReader

        tensors, size = GGUFReader(file).tensors, file.stat().st_size
        end = 0
        for tensor in sorted(tensors, key=lambda each: each.data_offset):
            if tensor.data_offset < end or tensor.data_offset + tensor.n_bytes > size:
                raise ValueError(f"the tensor {tensor.name} overlaps another one or ends after the file")
            end = tensor.data_offset + tensor.n_bytes
        return {tensor.name: tensor.n_elements for tensor in tensors}


def _check_header(file: IO[bytes]) -> None:
    """Walk through the metadata of a GGUF file, whose readers would build a list for each array."""
    version, _, fields = _read(file, "4xIQQ")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}, and {VERSIONS} are read")
    left = VALUES
    for _ in range(fields):
        _skip_texts(file, 1)
        (kind,) = _read(file, "I")
        inner, count = _read(file, "IQ") if kind == ARRAY else (kind, 1)
        left -= count
        if left < 0:
            raise ValueError(f"its metadata has more than {VALUES:,} values")
        if inner == STRING:
            _skip_texts(file, count)
        elif inner in SIZES:
            _skip(file, SIZES[inner] * count)
        else:
            raise ValueError(f"a value of its metadata is of type {inner}")


def _skip_texts(file: IO[bytes], count: int) -> None:
    for _ in range(count):
        _skip(file, *_read(file, "Q"))


def _skip(file: IO[bytes], count: int) -> None:
    if count > os.fstat(file.fileno()).st_size - file.tell():
        raise ValueError("it ends within its metadata")
    file.seek(count, os.SEEK_CUR)


def _read(file: IO[bytes], form: str) -> tuple[int, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _check_all_read(file: Path, values: Mapping[str, int], model: Any, loading: Mapping[str, Any]) -> None:
    """Refuse a GGUF file if transformers left out tensors, or initialised missing parameters at random.

    `values`: of each tensor in the file; `loading`: transformers' report.
    """
    for name, stored, wanted in sorted(loading["mismatched_keys"]):
        raise InputError(f"{file}: {name} has the shape {list(stored)}, and {list(wanted)} by its metadata; {AGAIN}")
    for name in sorted(loading["missing_keys"]):
        raise InputError(f"{file}: lacks {name}, and transformers would draw it at random; {AGAIN}")
    held = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    tied = (OUTPUT,) if model.config.tie_word_embeddings else ()
    read = [name for name in values if name not in tied and not any(part in name for part in CONSTANTS)]
    surplus = sum(values[name] for name in read) - sum(held.values())
    if surplus > 0:
        reason = f"{surplus:,} of its values have no place in {type(model).__name__}, and would be left out"
        raise InputError(f"{file}: {reason}; merge the model that it was made from")


def dequantised(models: Mapping[str, Path], folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Write GGUF models into folders with their names; return all models, and what was done."""
    read, notes = dict(models), list[str]()
    for name, path in models.items():
        if (file := gguf_in(path)) is not None:
            read[name] = folder / name
            read[name].mkdir(parents=True)
            notes.append(f"{name}: {write_dequantised(file, read[name])}")
    return read, notes


def install_weights(path: Path, folder: Path, strip: str = "") -> Checkpoint:
    """Copy a checkpoint's safetensors files, or convert it if it is torch weights or its names change.

    `path`: its folder or file. A single file gets the name that its reader expects. Returns the opened checkpoint.
    Raises InputError for missing, truncated and misplaced shards.
    """
    checkpoint = open_checkpoint(path)
    shown = _stripped(checkpoint, strip, path) if strip else checkpoint
    index = None if wrappers_of(checkpoint) else _index_of(path, shown)
    if isinstance(shown, SafetensorsFile) and not wrappers_of(checkpoint):
        if path.is_dir():
            check_link(shown.path, path)
        shutil.copyfile(shown.path, folder / f"{written_like(shown.path.name)}.safetensors")
    elif index:
        _copy_shards(index, folder)
    else:
        tensors = ((name, shown.read(name)) for name in shown.names)
        write_model(folder, stored_specs(shown), tensors, shards_like(shown), written_as(shown))
    return checkpoint


def _index_of(path: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the index of a folder's shards, or a given index, if all can be copied under their names."""
    if not isinstance(checkpoint, ShardedCheckpoint):
        return None
    place = path if path.is_dir() else path.parent
    main = main_in(place, os.listdir(place)) if path.is_dir() else path.name
    plain = main in USUAL and all(shard.path.parent == place for shard in checkpoint.shards.values())
    return place / main if main and plain else None


def _copy_shards(index: Path, folder: Path) -> None:
    for name in [index.name, *sorted(set(weight_map(index, index.parent).values()))]:
        check_link(index.parent / name, index.parent)
        shutil.copyfile(index.parent / name, folder / name)


def _stripped(checkpoint: Checkpoint, prefix: str, path: Path) -> View:
    """Remove a prefix from names; raise InputError if none has it, or if two names become equal."""
    stored = {name.removeprefix(prefix): name for name in checkpoint.names}
    if len(stored) < len(checkpoint.names):
        raise InputError(f"{path}: strip: without {prefix!r} in front two parameters have one name")
    if prefix not in {name[: len(prefix)] for name in checkpoint.names}:
        raise InputError(f"{path}: strip: no parameter begins with {prefix!r}, the first is {checkpoint.names[0]}")
    return View(checkpoint, stored)


TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
SETTINGS_LIMIT = 2**25  # bytes: a tokenizer's lists its added tokens


def install_model(origin: Path, source: Path, folder: Path, strip: str = "") -> dict[str, Any]:
    """Copy a model's folder or file into this one; return what was left out."""
    check_model(origin)
    if (gguf := gguf_in(origin)) is not None:
        return {"dequantised": [write_dequantised(gguf, folder)]}
    if origin.is_file():
        installed = install_weights(origin, folder, strip)
        copy_companions(origin, folder)
        return _left(installed)
    names = list_model_files(origin)
    if adapter := adapter_names(names):
        _install_adapter(origin, adapter, folder)
        return {}
    weights = weights_in(origin, [name for name in names if "/" not in name])
    if not weights:
        open_stored(origin)  # says what the folder is
    installed = install_weights(origin, folder, strip)
    copy_companions(origin, folder)
    inside: dict[str, list[str]] = {}
    for place, _, own in (name.rpartition("/") for name in companion_names(names)):
        inside.setdefault(place, []).append(own)
    modules = [f"{place}/" for place, own in inside.items() if place and main_file(own)]
    return _left(installed, left_out=left_out(names, {*weights, *companion_names(names)}), modules=modules)


def _left(installed: Checkpoint, **more: list[str]) -> dict[str, Any]:
    """Return what was left out, or is not merged, by kind."""
    aliases = {alias: name for alias, name in installed.dropped.items() if name is not None}
    constants = [name for name, first in installed.dropped.items() if first is None]
    left = {"tied": aliases, "constants": constants, "wrappers": sorted(wrappers_of(installed)), **more}
    return {kind: what for kind, what in left.items() if what}


def _install_adapter(origin: Path, names: list[str], folder: Path) -> None:
    config, tensors = names
    open_model(origin)  # refuses what is more than a low-rank update
    for name in names:
        check_link(origin / name, origin)
    shutil.copyfile(origin / config, folder / config)
    take_tokenizer(origin, folder)
    install_weights(origin / tensors, folder)
    (folder / f"{MODEL}.safetensors").rename(folder / ADAPTER_FILES[0])


def set_padding(folder: Path, pad_token_id: int) -> None:
    """Write the padding token into a model's configuration.

    Raises InputError if the tokenizer has one, which takes precedence.
    """
    for name in TOKENIZER_FILES:
        if (read_object(folder / name, SETTINGS_LIMIT) or {}).get("pad_token") is not None:
            raise InputError(f"{folder / name}: the tokenizer has a padding token; leave base.pad_token_id out")
    config = read_config(folder / CONFIG)
    if config is None:
        raise InputError(f"{folder}: no {CONFIG}, where base.pad_token_id would be written; leave it out")
    (folder / CONFIG).write_text(
        json.dumps({**config, "pad_token_id": pad_token_id}, indent=2) + "\n", encoding="utf-8"
    )


def install_open_clip(pointer: OpenClipPointer, source: Path, folder: Path) -> dict[str, list[str]]:
    """Fetch one of open_clip's pretrained models by its own downloader, with its configuration.

    Returns the facts in its card, if it is from a hub.
    """
    import open_clip

    known = open_clip.list_pretrained()
    if (pointer.open_clip, pointer.pretrained) not in known:
        near = get_close_matches(f"{pointer.open_clip} {pointer.pretrained}", [f"{m} {t}" for m, t in known])
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(f"{source}: open_clip has no {pointer.open_clip} pretrained as {pointer.pretrained}{hint}")
    pretrained = open_clip.get_pretrained_cfg(pointer.open_clip, pointer.pretrained)
    guard()
    with in_hub_cache():
        downloaded = Path(open_clip.download_pretrained(pretrained))
        facts = _facts_beside(downloaded, os.path.dirname(pretrained.get("hf_hub", "")))
    install_weights(downloaded, folder)
    model = open_clip.get_model_config(pointer.open_clip)
    if pretrained.get("quick_gelu"):
        model["quick_gelu"] = True  # the tag says which activation it was trained with; the bare model name does not
    image = {key: pretrained[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in pretrained}
    config = {"model_cfg": model, "preprocess_cfg": image}
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return facts


def _facts_beside(downloaded: Path, hub: str) -> dict[str, list[str]]:
    """Return the facts in a repository's card at the commit of a downloaded file; empty for other files."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    if downloaded.parent.parent.name != "snapshots":
        return {}
    try:
        return read_facts(Path(hf_hub_download(hub, CARD, revision=downloaded.parent.name)))
    except EntryNotFoundError:  # there is no card, or no hub to be asked now
        return {}
