"""Which files of a model's folder hold its weights, told by their names: those that its reader looks for."""

import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

MODEL, DIFFUSERS = "model", "diffusion_pytorch_model"  # what a reader calls them, without an ending
OPEN_CLIP = ("open_clip_model", "open_clip_pytorch_model")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
PIPELINE = "model_index.json"  # of diffusers: names the folders of the components
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
SINGLE = tuple(f"{stem}.safetensors" for stem in (MODEL, DIFFUSERS, OPEN_CLIP[0]))  # files of all weights
INDEXED = ".safetensors.index.json"
# In the order in which transformers, diffusers and open_clip look for them: the file of all weights, or the index of
# its shards.
NAMES = (
    *(f"{MODEL}.safetensors", f"{MODEL}{INDEXED}", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *(f"{DIFFUSERS}{INDEXED}", f"{DIFFUSERS}.safetensors", f"{DIFFUSERS}.bin", f"{DIFFUSERS}.bin.index.json"),
    *(f"{OPEN_CLIP[0]}.safetensors", f"{OPEN_CLIP[1]}.bin"),
)
# Taken where it is the only one of its kind; the first * may be a variant such as fp16.
ALONE = (
    (f"*{INDEXED}",),
    ("*.bin.index.json",),
    tuple(f"{stem}.safetensors.index.*.json" for stem in (MODEL, DIFFUSERS)),
    tuple(f"{stem}.*.safetensors" for stem in (MODEL, DIFFUSERS)),
    ("*.safetensors",),
    tuple(f"*{suffix}" for suffix in TORCH_SUFFIXES),
)
# What a training leaves beside a model.
TRAINING = (
    *("training_args.bin", "optimizer*", "scheduler*", "scaler*", "rng_state*", "random_states*"),
    *("*optim_states.pt", "sampler*", "dl_state_dict*"),
)
SHARD = re.compile(r".+-\d{5}-of-\d{5}\.(safetensors|bin)")
INDEX = re.compile(r"(?P<stem>.+)\.(?P<ending>safetensors|bin)\.index(\.(?P<variant>[^.]+))?\.json")


def main_file(names: Collection[str]) -> str | None:
    """Return the file that holds a folder's weights, or the index of its shards; None where no name is known.

    A variant is taken where it is the only one, and so is a single file of any name.

    >>> main_file(["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin"])
    'model.safetensors'
    """
    return next(_found(sorted(name for name in names if "/" not in name)), None)


def _found(names: list[str]) -> Iterator[str]:
    yield from (name for name in NAMES if name in names)
    if len(fitting := candidates(names)) == 1:
        yield fitting[0]


def candidates(names: Collection[str]) -> list[str]:
    """Return the files of no usual name that may hold a folder's weights, all of one kind: the first there is.

    >>> candidates(["training_args.bin", "b.safetensors", "a.safetensors", "c.bin"])
    ['a.safetensors', 'b.safetensors']
    """
    own = sorted(name for name in names if not any(fnmatchcase(name, pattern) for pattern in TRAINING))
    fitting = ([name for name in own if any(fnmatchcase(name, each) for each in patterns)] for patterns in ALONE)
    return next((found for found in fitting if found), [])


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


def is_index(name: str) -> bool:
    """Tell whether a file is the index of a sharded checkpoint."""
    return INDEX.fullmatch(name) is not None or name.endswith(".index.json")


def written_like(name: str) -> str:
    """Return what a model's files are called, without their endings, so that the reader of such a file finds them.

    >>> written_like("diffusion_pytorch_model.fp16.safetensors"), written_like("pytorch_model.bin")
    ('diffusion_pytorch_model', 'model')
    """
    return DIFFUSERS if name.startswith(DIFFUSERS) else MODEL
