"""Which files of a model's folder hold its weights, told by their names: those that its reader looks for."""

import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

MODEL, DIFFUSERS = "model", "diffusion_pytorch_model"  # what a reader calls them, without an ending
OPEN_CLIP = ("open_clip_model", "open_clip_pytorch_model")
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
SINGLE = tuple(f"{stem}.safetensors" for stem in (MODEL, DIFFUSERS, OPEN_CLIP[0]))  # files of all weights
# In the order in which transformers and diffusers look for them; * is a variant such as fp16. The file of all weights,
# or the index of its shards.
NAMES = (
    *SINGLE,
    *(f"{stem}.safetensors.index.json" for stem in (MODEL, DIFFUSERS, "*")),
    *(f"{stem}.bin" for stem in ("pytorch_model", DIFFUSERS, OPEN_CLIP[1])),
    *(f"{stem}.bin.index.json" for stem in ("pytorch_model", DIFFUSERS, "*")),
)
ALONE = (
    tuple(f"{stem}.safetensors.index.*.json" for stem in (MODEL, DIFFUSERS)),
    tuple(f"{stem}.*.safetensors" for stem in (MODEL, DIFFUSERS)),
    ("*.safetensors",),
    tuple(f"*{suffix}" for suffix in TORCH_SUFFIXES),
)
# What a folder may hold in place of such a file, and what makes one of it.
FOREIGN = {
    "*-?????-of-?????.gguf": "a GGUF file in parts: join them by llama.cpp's llama-gguf-split --merge",
    "*.gguf": "several GGUF files, of llama.cpp; give one of them",
    "flax_model.msgpack": "weights of Flax: transformers 4 converts them, from_pretrained(FOLDER, from_flax=True)",
    "tf_model.h5": "weights of TensorFlow: transformers 4 converts them, from_pretrained(FOLDER, from_tf=True)",
    "*.onnx": "an exported graph of ONNX; give the model that it was made from",
    "*.distcp": "a distributed checkpoint: torch.distributed.checkpoint.format_utils dcp_to_torch makes one file",
    "zero_to_fp32.py": "a checkpoint of DeepSpeed: its zero_to_fp32.py makes one file of it",
    "global_step*": "a checkpoint of DeepSpeed: deepspeed.utils.zero_to_fp32 makes one file of it",
    "checkpoint-*": "a folder of training; give one of its checkpoints",
}
INDEX = re.compile(r"(?P<stem>.+)\.(?P<ending>safetensors|bin)\.index(\.(?P<variant>[^.]+))?\.json")


def main_file(names: Collection[str]) -> str | None:
    """Return the file that holds a folder's weights, or the index of its shards; None where no name is known.

    A variant is taken where it is the only one, and so is a single file of any name.

    >>> main_file(["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin"])
    'model.safetensors'
    """
    return next(_found(sorted(name for name in names if "/" not in name)), None)


def _found(names: list[str]) -> Iterator[str]:
    for pattern in NAMES:
        yield from (name for name in names if fnmatchcase(name, pattern))
    for patterns in ALONE:
        fitting = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if len(fitting) == 1:
            yield fitting[0]


def weight_names(names: Collection[str]) -> list[str]:
    """Pick the files that hold a checkpoint's weights from the names in its folder; none when there are none."""
    main = main_file(names)
    index = INDEX.fullmatch(main or "")
    if main is None or index is None:
        return [main] if main else []
    stem = ".".join(part for part in (index["stem"], index["variant"]) if part)
    shards = [name for name in names if fnmatchcase(name, f"*-of-*.{index['ending']}") and "/" not in name]
    own = [name for name in shards if name.startswith(f"{stem}-")]
    return [main, *sorted(own or shards)]


def foreign(names: Collection[str]) -> str | None:
    """Say which format a folder without such files has, and what to do; None where no name is known.

    >>> foreign(["checkpoint-20", "runs"])
    'a folder of training; give one of its checkpoints: checkpoint-20'
    """
    for pattern, said in FOREIGN.items():
        if found := [name for name in sorted(names) if fnmatchcase(name, pattern)]:
            return f"{said}: {', '.join(found)}" if "give one" in said else said
    return None


def is_index(name: str) -> bool:
    """Tell whether a file is the index of a sharded checkpoint."""
    return INDEX.fullmatch(name) is not None or name.endswith(".index.json")


def written_like(name: str) -> str:
    """Return what a model's files are called, without their endings, so that the reader of such a file finds them.

    >>> written_like("diffusion_pytorch_model.fp16.safetensors"), written_like("pytorch_model.bin")
    ('diffusion_pytorch_model', 'model')
    """
    return DIFFUSERS if name.startswith(DIFFUSERS) else MODEL
