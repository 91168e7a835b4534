"""Find the weight files in a model's folder by name, as their readers do; and recognise folders in other formats.

For a folder or file that is no supported model, the messages say what it is, and which tool converts it.
"""

import os
import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.tensors import HEADER_LIMIT
from merganser.errors import InputError, refusing, some
from merganser.limits import check_link, parse_json, read_small

MODEL, DIFFUSERS = "model", "diffusion_pytorch_model"  # what a reader calls them, without an ending
OPEN_CLIP = ("open_clip_model", "open_clip_pytorch_model")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
PIPELINE = "model_index.json"  # of diffusers: names the folders of the components
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
FORMATS = ((".safetensors",), TORCH_SUFFIXES)  # by their suffixes, in the order in which they are looked for
SUFFIXES = tuple(suffix for suffixes in FORMATS for suffix in suffixes)
SINGLE = tuple(f"{stem}.safetensors" for stem in (MODEL, DIFFUSERS, OPEN_CLIP[0]))  # files of all weights
INDEXED = ".safetensors.index.json"
# In the order in which transformers, diffusers and open_clip look for them: the file of all weights, or the index of
# its shards.
NAMES = (
    *(f"{MODEL}.safetensors", f"{MODEL}{INDEXED}", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *(f"{DIFFUSERS}{INDEXED}", f"{DIFFUSERS}.safetensors", f"{DIFFUSERS}.bin", f"{DIFFUSERS}.bin.index.json"),
    *(f"{OPEN_CLIP[0]}.safetensors", f"{OPEN_CLIP[1]}.bin"),
)
USUAL = tuple(name for name in NAMES if name.endswith(INDEXED))  # indices that are copied with their shards
# Taken where it is the only one of its kind; the first * may be a variant such as fp16.
ALONE = (
    (f"*{INDEXED}",),
    ("*.bin.index.json",),
    tuple(f"{stem}.safetensors.index.*.json" for stem in (MODEL, DIFFUSERS)),
    tuple(f"{stem}.*.safetensors" for stem in (MODEL, DIFFUSERS)),
    *(tuple(f"*{suffix}" for suffix in suffixes) for suffixes in FORMATS),
)
# What a training leaves beside a model.
TRAINING = (
    *("training_args.bin", "optimizer*", "scheduler*", "scaler*", "rng_state*", "random_states*"),
    *("*optim_states.pt", "sampler*", "dl_state_dict*"),
)
SHARD = re.compile(r".+-\d{5}-of-\d{5}\.(safetensors|bin)")
INDEX = re.compile(r"(?P<stem>.+)\.(?P<ending>safetensors|bin)\.index(\.(?P<variant>[^.]+))?\.json")


def main_file(names: Collection[str]) -> str | None:
    """Return the file with a folder's weights, or the index of its shards; None if no name is known.

    A variant is taken if it is the only one, and so is a single file of any name.

    >>> main_file(["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin"])
    'model.safetensors'
    """
    own = [name for name in names if "/" not in name]
    if usual := next((name for name in NAMES if name in own), None):
        return usual
    fitting = candidates(own)
    return fitting[0] if len(fitting) == 1 else None


def candidates(names: Collection[str]) -> list[str]:
    """Return files with other names that may hold a folder's weights, all of the first kind that exists.

    >>> candidates(["training_args.bin", "b.safetensors", "a.safetensors", "c.bin"])
    ['a.safetensors', 'b.safetensors']
    """
    own = sorted(name for name in names if not any(fnmatchcase(name, pattern) for pattern in TRAINING))
    fitting = ([name for name in own if any(fnmatchcase(name, each) for each in patterns)] for patterns in ALONE)
    return next((fitting_names for fitting_names in fitting if fitting_names), [])


def weight_names(names: Collection[str]) -> list[str]:
    """Return the files of a checkpoint's weights among the names in its folder; empty if there are none."""
    main = main_file(names)
    index = INDEX.fullmatch(main or "")
    if main is None or index is None:
        return [main] if main else []
    stem = ".".join(part for part in (index["stem"], index["variant"]) if part)
    shards = [name for name in names if fnmatchcase(name, f"*-of-*.{index['ending']}") and "/" not in name]
    own = [name for name in shards if name.startswith(f"{stem}-")]
    return [main, *sorted(own or shards)]


def weight_bytes(folder: Path) -> int:
    """Return the size of all files of weights in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())


def is_index(name: str) -> bool:
    """Tell whether a file is the index of a sharded checkpoint."""
    return INDEX.fullmatch(name) is not None or name.endswith(".index.json")


def written_like(name: str) -> str:
    """Return the stem of a model's files, so that the reader of such a file finds them.

    >>> written_like("diffusion_pytorch_model.fp16.safetensors"), written_like("pytorch_model.bin")
    ('diffusion_pytorch_model', 'model')
    """
    return DIFFUSERS if name.startswith(DIFFUSERS) else MODEL


SHOWN = 8
MLX = (
    "an adapter of MLX: mlx_lm.fuse --model BASE --adapter-path FOLDER --save-path OUT makes a whole model, with "
    "--dequantize if its base is quantised"
)
_INTO_PIPELINE = (
    "fuse it into its diffusers pipeline (load_lora_weights, fuse_lora, save_pretrained), then merge the components "
    "one by one"
)
_ONNX = "an exported ONNX graph; give the original model"
_OPENVINO = "an exported OpenVINO model; give the original model"
_MEGATRON = "a checkpoint of Megatron: Megatron-Bridge exports it as a model of transformers"
# By what is in the folder, files and folders.
FOREIGN = {
    "*-?????-of-?????.gguf": "a GGUF file in parts: join them by llama.cpp's llama-gguf-split --merge",
    "*.gguf": "several GGUF files, of llama.cpp; give one of them",
    **dict.fromkeys(("adapters.safetensors", "*_adapters.safetensors", "adapters.npz"), MLX),
    "flax_model*.msgpack": "weights of Flax: transformers 4 converts them, from_pretrained(FOLDER, from_flax=True)",
    "tf_model*.h5": "weights of TensorFlow: transformers 4 converts them, from_pretrained(FOLDER, from_tf=True)",
    "*.ckpt.index": "weights of TensorFlow 1: transformers 4 converts them, from_pretrained(INDEX, from_tf=True)",
    "*.keras": "a model of Keras; give one of transformers or torch",
    "*.weights.h5": "weights of Keras; give a model of transformers or torch",
    "saved_model.pb": "an exported TensorFlow model; give the original model",
    "*.distcp": "a distributed checkpoint: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER "
    "FILE.pt makes one file of it (accelerate merge-weights FOLDER OUT, if Accelerate wrote it)",
    "pytorch_model_fsdp_*": "a checkpoint of FSDP in shards: accelerate merge-weights FOLDER/pytorch_model_fsdp_0 OUT "
    "makes one file of it",
    "zero_to_fp32.py": "a checkpoint of DeepSpeed: python FOLDER/zero_to_fp32.py FOLDER OUT makes a model of it",
    "global_step*": "a checkpoint of DeepSpeed: python -m deepspeed.utils.zero_to_fp32 FOLDER OUT makes a model of it",
    "*zero_pp_rank_*": "a step of a DeepSpeed checkpoint: python -m deepspeed.utils.zero_to_fp32 FOLDER OUT makes a "
    "model of the folder around it",
    "mp_rank_*": _MEGATRON,
    "iter_???????": _MEGATRON,
    "*.nemo": "a NeMo archive; convert it to a transformers model by NeMo's exporters",
    "checkpoint-*": "a folder of training; give one of its checkpoints",
    **dict.fromkeys(("*.onnx", "onnx"), _ONNX),
    **dict.fromkeys(("openvino_model.xml", "openvino"), _OPENVINO),
}
# By the names of all tensors in a file.
ADAPTERS = {
    r"(lora|lycoris|oft)_[^.]+\..+": f"a LoRA of kohya's sd-scripts or of LyCORIS, not a model: {_INTO_PIPELINE}",
    r"(unet|transformer|text_encoder(_\d)?|diffusion_model)\..+lora(_[AB]|\.down|\.up)\b.*": (
        f"a LoRA of diffusers, not a model: {_INTO_PIPELINE}"
    ),
    r".+\.(lora_[ab]|m)": MLX,
    r".+\.(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)(\..+)?": (
        f"the tensors of an adapter of PEFT, not a model; give its folder, with {ADAPTER_CONFIG} and {ADAPTER_FILES[0]}"
    ),
}
SCALES = re.compile(r".+\.(alpha|dora_scale|lora_alpha|scale)")  # beside the factors in files of adapters


def foreign(names: Collection[str]) -> str | None:
    """Name the format of a folder without supported weights, and the remedy; None if no name is known.

    >>> foreign(["checkpoint-20", "runs"])
    'a folder of training; give one of its checkpoints: checkpoint-20'
    """
    for pattern, said in FOREIGN.items():
        if matching := [name for name in sorted(names) if fnmatchcase(name, pattern)]:
            return f"{said}: {some(matching, SHOWN)}" if said.endswith(("give one of them", "checkpoints")) else said
    return None


def adapter_in(names: Collection[str]) -> str | None:
    """Name the kind of adapter in a file, by its tensors' names; None for a model.

    >>> adapter_in(["lora_te_text_model.lora_up.weight", "lora_te_text_model.alpha"])[:35]
    "a LoRA of kohya's sd-scripts or of "
    """
    factors = [name for name in names if not SCALES.fullmatch(name)]
    for pattern, said in ADAPTERS.items():
        if factors and all(re.fullmatch(pattern, name) for name in factors):
            return said
    return None


def without_weights(path: Path, names: Collection[str]) -> str:
    """Describe a folder without weights, and what to give instead."""
    if PIPELINE in names:
        parts = [part.name for part in path.iterdir() if part.is_dir() and weight_names(os.listdir(part))]
        remedy = f"merge its components one by one, by their folders in all models: {', '.join(sorted(parts))}"
        return f"a pipeline of diffusers; {remedy}"
    known = foreign(os.listdir(path))
    if known == MLX:
        return known
    if any(name in names for name in (ADAPTER_CONFIG, *ADAPTER_FILES)):
        both = f"to be merged it has both {ADAPTER_CONFIG} and {ADAPTER_FILES[0]}"
        return f"an adapter, not a whole model: no base; {both}"
    if several := candidates(names):
        if all(SHARD.fullmatch(name) for name in several):
            return f"shards without their index, such as {NAMES[1]}; fetch the whole model"
        return f"several files of weights, and none of a usual name; give one of them: {some(several, SHOWN)}"
    if adapters := [part.name for part in sorted(path.iterdir()) if (part / ADAPTER_CONFIG).is_file()]:
        return f"several adapters, each in its own folder; give one of them: {', '.join(adapters)}"
    if known is not None:
        return known
    if dangling := [link.name for link in sorted(path.iterdir()) if link.is_symlink() and not link.exists()]:
        return f"{dangling[0]} is a broken link; fetch it again"
    return f"no checkpoint in this folder; expected one of {', '.join(NAMES)}"


def both_in(names: Collection[str], main: str | None) -> str | None:
    """Return a message if a folder has a whole model and an adapter; None otherwise. `main`: its weights."""
    adapter = next((name for name in ADAPTER_FILES if name in names and ADAPTER_CONFIG in names), None)
    if adapter is None or main is None or (main not in NAMES and main in candidates(names)):
        return None
    loaded = "which from_pretrained loads as the one with the other put onto it"
    remedy = f"give the file {main} for the model alone, or the adapter ({ADAPTER_CONFIG}, {adapter}) in its own folder"
    return f"a whole model and an adapter, {loaded}; {remedy}"


LONGEST = 255  # bytes of a file's name
KEY = "transformers_weights"  # of a configuration: comes before any usual name
ENDINGS = (".safetensors", ".safetensors.index.json")


def main_in(folder: Path, names: Collection[str]) -> str | None:
    """Return the file with a folder's weights, or the index of its shards, as a relative path.

    `names`: of the files in the folder. None if no name is known.
    """
    named = (read_config(folder / CONFIG) or {}).get(KEY)
    return main_file(names) if named is None else _checked(named, folder)


def weights_in(folder: Path, names: Collection[str]) -> list[str]:
    """Return the files of a folder's weights as relative paths: the file, or the index and all its shards."""
    main = main_in(folder, names)
    if main is None or not is_index(main):
        return [main] if main else []
    return [main, *sorted(set(weight_map(folder / main, folder).values()))]


def lacking(folder: Path, names: Collection[str]) -> list[str]:
    """Return the weights that a folder's configuration or index names but that are missing, as after a cut download."""
    named = (read_config(folder / CONFIG) or {}).get(KEY)
    if isinstance(named, str) and not (folder / named).exists():
        return [_inside(named, folder, folder / CONFIG)]
    return [name for name in weights_in(folder, names) if not (folder / name).exists()]


def weight_map(index: Path, folder: Path) -> dict[str, str]:
    """Return the shard of each tensor by an index, as a path relative to the model's folder.

    Raises InputError if a path leads out of the folder.
    """
    check_link(index, folder)
    with refusing(f"{index}: not an index of shards", "fetch it again"):
        names: dict[str, str] = parse_json(read_small(index, HEADER_LIMIT))["weight_map"]
        files = {file: _inside(file, folder, index) for file in set(names.values())}
    return {name: files[file] for name, file in names.items()}


def _checked(named: Any, folder: Path) -> str:
    """Return the path in `transformers_weights`; raise InputError if transformers would not load it."""
    where = f"{folder / CONFIG}: {KEY}"
    if not isinstance(named, str) or not named.endswith(ENDINGS):
        raise InputError(f"{where}: {named!r} is neither a safetensors file nor an index of such, {ENDINGS[1]}")
    name = _inside(named, folder, folder / CONFIG)
    if not (folder / name).exists():
        raise InputError(f"{where}: {named} is not there, and transformers loads no other file; fetch it again")
    return name


def _inside(name: str, folder: Path, where: Path) -> str:
    """Return a file's path relative to a folder; raise InputError if it leads out."""
    place = os.path.normpath(folder / name)
    inner = os.path.relpath(place, folder)
    if not name.isprintable() or inner in ("", ".") or inner.split(os.sep)[0] == "..":
        raise InputError(f"{where}: names the file {name!r} outside its folder; only files in {folder} are read")
    if any(len(part.encode()) > LONGEST for part in inner.split(os.sep)):
        raise InputError(f"{where}: names the file {name[:LONGEST]!r}..., longer than a name may be; fetch it again")
    return Path(inner).as_posix()
