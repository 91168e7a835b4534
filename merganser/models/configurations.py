"""Read the configurations that transformers writes next to a checkpoint, and build their architectures.

No code of a checkpoint is run, and nothing is downloaded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.initialization import no_init_weights
from transformers.utils import logging

from merganser.checkpoints import architecture
from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.bounded import bounded
from merganser.checkpoints.companions import CONFIGURATIONS, described_elsewhere
from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.weight_files import weight_bytes
from merganser.checkpoints.writing import TORCH
from merganser.errors import InputError, quoting
from merganser.limits import check_files
from merganser.models import DeviceName, Precision, family_names, get_family
from merganser.models.named_module import tied_parameter_names
from merganser.models.naming import Naming, computed_parameters, naming_of

LARGEST = 2**25  # bytes: a tokenizer's configuration lists its added tokens

Make = Callable[..., Any]  # of a configuration and a dtype, a module


def read_family_config(family: str, folder: Path, outputs: int | None = None) -> Any:
    """Read a folder's configuration; `outputs`: those of its model's head, by default as the configuration says.

    Raises InputError if there is none, if it needs foreign code, or, naming the right family, if it is of another
    family.
    """
    if not (folder / CONFIG).exists():
        own = described_elsewhere()
        remedy = next((f"; set base.family to {name}" for name in own if (folder / own[name]).is_file()), "")
        raise InputError(
            f"{folder}: no {CONFIG}, which models of the family {family} need next to their weights{remedy}"
        )
    check_files(folder)
    for name in CONFIGURATIONS:
        _refuse_code(folder / name)
    with quoting(f"{folder / CONFIG}: transformers cannot read it"), _in_silence():
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.model_type not in get_family(family).MODEL_TYPES:
        raise InputError(f"{folder}: {config.model_type} is not of the family {family}; {_hint(config.model_type)}")
    if outputs is not None:
        config.num_labels = outputs
    return config


def _hint(model_type: str) -> str:
    """Name the families that support a model type, or say why none does."""
    families = {name: get_family(name) for name in family_names()}
    if fitting := [name for name, family in families.items() if model_type in family.MODEL_TYPES]:
        return f"set base.family to {' or '.join(fitting)}"
    reasons = {reason for each in families.values() for reason in [getattr(each, "UNSUPPORTED", {}).get(model_type)]}
    return next((f"no family builds it: it {reason}" for reason in reasons if reason), "no family builds it")


@contextmanager
def _in_silence() -> Iterator[None]:
    """Silence transformers' warnings in the block; it warns of tokens in its own defaults (SigLIP's)."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _refuse_code(file: Path) -> None:
    """Refuse a configuration that names code, from the checkpoint's repository or another one."""
    content = architecture.read_config(file, LARGEST) or {}
    for part in (content, *(value for value in content.values() if isinstance(value, dict))):
        if "auto_map" in part:
            raise InputError(f"{file}: 'auto_map' asks for code that came with the checkpoint; such code is never run")
        elsewhere = [key for key, value in part.items() if key.endswith("_implementation") and "/" in str(value)]
        if elsewhere:
            raise InputError(f"{file}: {elsewhere[0]!r} asks for code of another repository; such code is never run")
    if "quantization_config" in content:
        raise InputError(f"{file}: a quantised checkpoint cannot be merged; give the original one")


def build(
    make: Make,
    config: Any,
    folder: Path,
    device: DeviceName = "cpu",
    precision: Precision = "float32",
    tensors: int | None = None,
) -> Any:
    """Build an architecture for inference, without weights; on the CPU, where its buffers are computed.

    `tensors`: the number of tensors in the folder's checkpoint, if known. Raises InputError if the configuration's
    model is larger than the checkpoint can be.
    """
    what = f"{folder / CONFIG}: transformers cannot build this model"
    with quoting(what), no_init_weights(), bounded(weight_bytes(folder), tensors):
        module = make(config, dtype=TORCH[precision])
    module.tie_weights()
    for name in computed_parameters(module):
        module._init_weights(module.get_submodule(name.rpartition(".")[0]))
    return module.eval() if device == "cpu" else module.eval().to(device)


def check_parameter_names(
    make: Make,
    config: Any,
    folder: Path,
    checkpoint: Checkpoint,
    *,
    left_out: Sequence[str] = (),
    may_lack: Sequence[str] = (),
    prefix: str | None = None,
) -> list[str]:
    """Refuse a checkpoint with a missing, unknown or misshapen parameter, by its headers and configuration alone.

    Returns the parameters that it lacks and may lack, by the module's names.
    """
    with torch.device("meta"):
        module = build(make, config, folder, tensors=len(checkpoint.names))
    return check_names(module, naming_of(module, folder, left_out, prefix), checkpoint, may_lack)


def check_names(module: Any, naming: Naming, checkpoint: Checkpoint, may_lack: Sequence[str]) -> list[str]:
    """Refuse a checkpoint without the parameters of a module, which may be on the device `meta`."""
    ties = tied_parameter_names(module)
    headers = ((name, torch.empty(checkpoint.spec(name).shape, device="meta")) for name in checkpoint.names)
    own = {name for name, _, _ in naming.own_values(headers)}
    return naming.check_missing([*ties, *(ties.get(name, name) for name in own), *own], may_lack)
