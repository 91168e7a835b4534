"""Write low-rank updates as an adapter in PEFT's format."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.adapters.files import MODEL
from merganser.checkpoints.reading import ADAPTER_CONFIG, ADAPTER_FILES
from merganser.checkpoints.tensors import spec_of
from merganser.checkpoints.writing import write_single

WEIGHT = ".weight"


def write_adapter(
    folder: Path,
    updates: Mapping[str, tuple[Tensor, Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    in_by_out: bool,
    base: str,
) -> None:
    """Write updates left @ right, by the names of their parameters, which end in `.weight`; scales are in the factors.

    `shapes`: of the parameters, linear maps out x in, or convolution kernels. `in_by_out`: their file has them the
    other way round. `base`: what the adapter is loaded onto.
    """
    tensors: dict[str, Tensor] = {}
    for name, (left, right) in updates.items():
        module, kernel = f"{MODEL}{name.removesuffix(WEIGHT)}", shapes[name][2:]
        tensors[f"{module}.lora_A{WEIGHT}"] = right.reshape(len(right), *shapes[name][1:])
        tensors[f"{module}.lora_B{WEIGHT}"] = left.reshape(*left.shape, *[1] * len(kernel))
    ranks = {name.removesuffix(WEIGHT): len(right) for name, (_, right) in updates.items()}
    rank = max(ranks.values())
    others = {module: each for module, each in ranks.items() if each != rank}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,  # over the rank: a factor of 1
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted(ranks),
        "fan_in_fan_out": in_by_out,
        "bias": "none",
        "inference_mode": True,
        "task_type": None,
    }
    write_single(folder / ADAPTER_FILES[0], {name: spec_of(t) for name, t in tensors.items()}, tensors.items())
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
