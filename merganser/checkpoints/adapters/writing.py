"""Write low-rank updates as an adapter in PEFT's format."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.adapters.by_peft import ROOT
from merganser.checkpoints.reading import ADAPTER_CONFIG, ADAPTER_FILES
from merganser.checkpoints.tensors import spec_of
from merganser.checkpoints.writing import write_single

WEIGHT, BIAS = ".weight", ".bias"
NOTHING: Mapping[str, Tensor] = {}


def write_adapter(
    folder: Path,
    updates: Mapping[str, tuple[Tensor, Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    in_by_out: bool,
    base: str,
    modules: Sequence[str] = (),
    whole: Mapping[str, Tensor] = NOTHING,
    tied: Mapping[str, Tensor] = NOTHING,
) -> None:
    """Write updates left @ right, by the names of their parameters, which end in `.weight`; scales are in the factors.

    `shapes`: of the parameters, linear maps out x in, or convolution kernels. `in_by_out`: their file has them the
    other way round. `base`: what the adapter is loaded onto. `modules`: those that are saved whole; `whole`: their
    values and those of biases, as the file has them; `tied`: those of them that have a second name, by that.
    """
    tensors: dict[str, Tensor] = {}
    for name, (left, right) in updates.items():
        module, kernel = f"{ROOT}{name.removesuffix(WEIGHT)}", shapes[name][2:]
        tensors[f"{module}.lora_A{WEIGHT}"] = right.reshape(len(right), *shapes[name][1:])
        tensors[f"{module}.lora_B{WEIGHT}"] = left.reshape(*left.shape, *[1] * len(kernel))
    ranks = {name.removesuffix(WEIGHT): len(right) for name, (_, right) in updates.items()}
    inside = tuple(f"{module}." for module in modules)
    for name, tensor in {**whole, **tied}.items():
        module, _, own = name.rpartition(".")
        tensors[f"{ROOT}{module}{'.base_layer' if module in ranks else ''}.{own}"] = tensor
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
        "modules_to_save": [*modules, *(name.rpartition(".")[0] for name in tied)] or None,
        "fan_in_fan_out": in_by_out,
        "bias": "none" if all(name.startswith(inside) for name in whole) else "all",
        "ensure_weight_tying": bool(tied),
        "inference_mode": True,
        "task_type": None,
    }
    write_single(folder / ADAPTER_FILES[0], {name: spec_of(t) for name, t in tensors.items()}, tensors.items())
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
