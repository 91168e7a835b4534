"""Install a model in a folder: safetensors weights, and the other files of the model."""

import json
import os
import shutil
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from merganser.checkpoints.adapters.files import adapter_names, open_model
from merganser.checkpoints.architecture import CONFIG, read_config, read_object
from merganser.checkpoints.companions import check_model, companion_names, copy_companions, left_out, list_model_files
from merganser.checkpoints.named_weights import weights_in
from merganser.checkpoints.reading import ADAPTER_FILES, open_stored, wrappers_of
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.vocabulary.tokenizers import take_tokenizer
from merganser.checkpoints.weight_files import MODEL, weight_names
from merganser.errors import InputError
from merganser.limits import check_link
from merganser.sources.card_facts import CARD, read_facts
from merganser.sources.gguf import gguf_in, write_dequantised
from merganser.sources.hub_caches import in_hub_cache
from merganser.sources.pointers import OpenClipPointer
from merganser.sources.weights import install_weights

TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
SETTINGS_LIMIT = 2**25  # bytes: a tokenizer's lists its added tokens


def install_model(origin: Path, source: Path, folder: Path, strip: str = "") -> dict[str, Any]:
    """Bring a model's folder or file here; return what was left out of it."""
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
    modules = [f"{place}/" for place, own in inside.items() if place and weight_names(own)]
    return _left(installed, left_out=left_out(names, {*weights, *companion_names(names)}), modules=modules)


def _left(installed: Checkpoint, **more: list[str]) -> dict[str, Any]:
    """Say what was left out, or is not merged, by its kind; nothing of a kind that there is none of."""
    aliases = {alias: name for alias, name in installed.dropped.items() if name is not None}
    constants = [name for name, first in installed.dropped.items() if first is None]
    found = {"tied": aliases, "constants": constants, "wrappers": sorted(wrappers_of(installed)), **more}
    return {kind: what for kind, what in found.items() if what}


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
    """Write into a model's configuration which token texts are padded with.

    Raises InputError where the tokenizer has a padding token, which comes first.
    """
    for name in TOKENIZER_FILES:
        if (read_object(folder / name, SETTINGS_LIMIT) or {}).get("pad_token") is not None:
            raise InputError(f"{folder / name}: the tokenizer has a padding token; leave base.pad_token_id out")
    config = read_config(folder / CONFIG)
    if config is None:
        raise InputError(f"{folder}: no {CONFIG}, where base.pad_token_id would be written; leave it out")
    (folder / CONFIG).write_text(json.dumps({**config, "pad_token_id": pad_token_id}, indent=2) + "\n")


def install_open_clip(pointer: OpenClipPointer, source: Path, folder: Path) -> dict[str, list[str]]:
    """Fetch one of open_clip's pretrained models by open_clip's own downloader, with the configuration it implies.

    Returns what its card says, if it is from a hub.
    """
    import open_clip

    from merganser.sources.guarded import guard

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
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return facts


def _facts_beside(downloaded: Path, hub: str) -> dict[str, list[str]]:
    """Return what the card of a repository says at the commit that a file was downloaded at; nothing if it was not."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    if downloaded.parent.parent.name != "snapshots":
        return {}
    try:
        return read_facts(Path(hf_hub_download(hub, CARD, revision=downloaded.parent.name)))
    except EntryNotFoundError:  # there is no card, or no hub to be asked now
        return {}
