"""Models in llama.cpp's format: transformers reads them, and they are written dequantised, in folders."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from merganser.checkpoints.safetensors_file import GGUF
from merganser.checkpoints.weight_files import main_file
from merganser.errors import InputError, quoting
from merganser.limits import check_file

SUFFIX = ".gguf"
INSTALL = "a GGUF file, which transformers reads with the package gguf: pip install 'merganser[gguf]'"


def gguf_in(path: Path) -> Path | None:
    """Return the file of a model in llama.cpp's format: this one, or the only one in a folder without other weights."""
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}"))
        alone = len(found) == 1 and main_file([file.name for file in path.iterdir() if file.is_file()]) is None
        return found[0] if alone else None
    return path if path.is_file() and _begins_so(path) else None


def _begins_so(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GGUF)) == GGUF


def write_dequantised(file: Path, folder: Path) -> str:
    """Write a model as transformers reads it, in float32, with its configuration and tokenizer, into a folder.

    Returns what was done. Raises InputError where the package `gguf` is not installed, and where transformers does not
    know the architecture.
    """
    check_file(file)
    if find_spec("gguf") is None:
        raise InputError(f"{file}: {INSTALL}")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    place, named = str(file.parent), {"gguf_file": file.name}
    with quoting(f"{file}: transformers cannot read it"):
        config = AutoConfig.from_pretrained(place, **named)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = kind.from_pretrained(place, **named)
        del model.config.quantization_config  # of what was read; with it transformers writes no model
        model.hf_quantizer = None
        model.save_pretrained(folder)
    done = f"read by transformers from {file.name}, dequantised to float32"
    try:
        AutoTokenizer.from_pretrained(place, **named).save_pretrained(folder)
    except Exception as error:  # it knows those of four kinds
        return f"{done}, without the tokenizer ({next(iter(str(error).splitlines()), type(error).__name__)})"
    return done


def dequantised(models: Mapping[str, Path], folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Write those of some models that are GGUF files into folders of their names; return all, and what was done."""
    read, notes = dict(models), list[str]()
    for name, path in models.items():
        if (file := gguf_in(path)) is not None:
            read[name] = folder / name
            read[name].mkdir(parents=True)
            notes.append(f"{name}: {write_dequantised(file, read[name])}")
    return read, notes
