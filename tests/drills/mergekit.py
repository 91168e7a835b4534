"""Configurations of mergekit, merged by it and, brought over, by us: the same models but for rounding.

mergekit itself is installed in an environment of its own, as benchmarks/mergekit.py does it.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.mergekit import installed, versions
from merganser.config.recipes import RECIPE, read_recipe
from merganser.standalone.merge import merge_by
from merganser.standalone.mergekit.importing import imported, write_imported

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
SHARED, OWN = 0.05, 0.04  # what all fine-tuned models move by together, and each on its own; weights are of size 0.1
MOST = 1e-5  # of the model's norm, in float32: mergekit ends its iteration for the Karcher mean there
ROUNDED = 5e-2  # in bfloat16, to which mergekit rounds the models before it subtracts, trims and elects
SAMPLE = 3  # configurations of which ours merges in a sample
STANDARD_ERRORS = 6
GRADIENT = [{"filter": "self_attn", "value": [0, 0.5, 1]}, {"filter": "mlp", "value": [1, 0.2]}, {"value": 0.4}]

THEIRS = """
import sys, yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
options = MergeOptions(write_model_card=False, copy_tokenizer=False, quiet=True, lora_merge_cache="adapted")
for file in sys.argv[1:]:
    configuration = MergeConfiguration.model_validate(yaml.safe_load(open(file)))
    run_merge(configuration, f"theirs{file.removesuffix('.yml')}", options)
"""


def several(method: str, weights: list[Any], base: bool = True, **more: Any) -> dict[str, Any]:
    """Write a configuration of a model for each weight."""
    own = more.pop("own", [{}] * len(weights))
    models = [
        {"model": f"model{number}", "parameters": {"weight": weight, **each}}
        for number, (weight, each) in enumerate(zip(weights, own, strict=True), 1)
    ]
    return {"merge_method": method, "models": models, **({"base_model": "base"} if base else {}), "parameters": more}


def one_slice(method: str, other: str, **parameters: Any) -> dict[str, Any]:
    """Write a configuration of a slice of all layers of the base and one model."""
    sources = [{"model": name, "layer_range": [0, 4]} for name in ("base", other)]
    return {"merge_method": method, "slices": [{"sources": sources}], "base_model": "base", "parameters": parameters}


def in_slices(method: str, *parts: tuple[int, int, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Write a configuration of two models, and the base if there is one, in slices with parameters of their own."""
    models = [*(["base"] if "base_model" in more else []), "model1", "model2"]
    slices = [
        {"sources": [{"model": name, "layer_range": [first, end]} for name in models], "parameters": parameters}
        for first, end, parameters in parts
    ]
    return {"merge_method": method, "slices": slices, **more}


def one_at_random(method: str) -> dict[str, Any]:
    """Write a configuration that keeps half of one model's entries at random."""
    return several(method, [1.0], density=0.5)


DENSITIES = [{"density": 0.3}, {"density": 0.6}, {"density": 0.5}]
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "linear": several("linear", [0.5, 0.3, 0.4], base=False),
    "linear, by layer": several("linear", [[0.1, 0.9], 0.5, [{"filter": "mlp", "value": 1}, {"value": 0}]], base=False),
    "linear, in slices": in_slices("linear", (0, 1, {"weight": 2}), (1, 4, {"weight": [0.2, 1.0]})),
    "task_arithmetic, in slices": in_slices(
        "task_arithmetic", (0, 2, {"weight": [0.2, 0.9]}), (2, 4, {"weight": 0.5}), base_model="base"
    ),
    "karcher, in a module": {
        "merge_method": "karcher",
        "modules": {"default": {"slices": in_slices("karcher", (0, 4, {}))["slices"]}},
    },
    "linear, negative": several("linear", [1.2, -0.4, 0.4], base=False),
    "task_arithmetic": several("task_arithmetic", [0.6, -0.2, 0.3], **{"lambda": 0.8}),
    "task_arithmetic, adapters": {
        "merge_method": "task_arithmetic",
        "base_model": "base",
        "models": [{"model": "base+adapter", "parameters": {"weight": 0.5}}],
    },
    "ties": several("ties", [0.5, 0.3, 0.4], own=DENSITIES),
    "ties, unnormalised, rescaled": several("ties", [0.5, 0.3, 0.4], own=DENSITIES, normalize=False, rescale=True),
    "dare_linear, density 1": several("dare_linear", [0.5, 0.3, 0.4], density=1.0),
    "dare_ties, density 1": several("dare_ties", [0.5, 0.3, 0.4], density=1.0),
    "della, density 1": several("della", [0.5, 0.3, 0.4], density=1.0, **{"lambda": 1.2}),
    "della_linear, density 1": several("della_linear", [0.5, 0.3, 0.4], density=1.0),
    "dare_linear, at random": one_at_random("dare_linear"),
    "della, at random": one_at_random("della"),
    "breadcrumbs": several("breadcrumbs", [0.5, 0.3, 0.4], own=DENSITIES, gamma=0.05),
    "breadcrumbs_ties": several("breadcrumbs_ties", [0.5, 0.3, 0.4], density=0.5, gamma=0.05),
    "slerp": one_slice("slerp", "far", t=0.3),
    "slerp, near": one_slice("slerp", "model1", t=0.3),
    "slerp, by layer": one_slice("slerp", "far", t=GRADIENT),
    "nuslerp": several("nuslerp", [0.5, 0.2]),
    "nuslerp of models": several("nuslerp", [0.5, 0.2], base=False),
    "nuslerp, flatten false": several("nuslerp", [0.5, 0.2], nuslerp_flatten=False),
    "nuslerp, row_wise": several("nuslerp", [0.5, 0.2], nuslerp_flatten=False, nuslerp_row_wise=True),
    "model_stock": several("model_stock", [1, 1, 1]),
    "model_stock, filter_wise": several("model_stock", [1, 1, 1], filter_wise=True),
    "karcher": several("karcher", [1, 1, 1], base=False),
    "sce": several("sce", [1, 1, 1], select_topk=0.3),
    "sce, all entries": several("sce", [1, 1, 1]),
    "arcee_fusion": one_slice("arcee_fusion", "far"),
    "ties in bfloat16": several("ties", [0.5, 0.3, 0.4], own=DENSITIES) | {"dtype": "bfloat16"},
}


def drill(folder: Path, sample: bool) -> None:
    """Merge by every configuration on both sides, and print how far apart the models are; a sample only does ours."""
    write_models(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        files = []
        for number, configuration in enumerate(CONFIGURATIONS.values()):
            files.append(Path(f"{number}.yml"))
            files[-1].write_text(yaml.safe_dump({"dtype": "float32", **configuration}))
        for file in files:
            write_imported(imported(file), file, Path(f"ours{file.stem}"))
        ours = [merged_here(Path(f"ours{file.stem}")) for file in files[: SAMPLE if sample else None]]
        if not sample:
            print(
                f"{versions()}; distance of the merged models, of their norm, and of the merged deltas' norm",
                flush=True,
            )
            merge_there(files)
            for file, found, (name, configuration) in zip(files, ours, CONFIGURATIONS.items(), strict=True):
                compare(name, found, weights_in(Path(f"theirs{file.stem}")), configuration)
    finally:
        os.chdir(before)


def write_models(folder: Path) -> None:
    """Write a base, three models fine-tuned from it, one that is far away, and an adapter."""
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder / "base")
    base = load_file(folder / "base/model.safetensors")
    generator = torch.Generator().manual_seed(0)

    def drawn(size: float) -> dict[str, Tensor]:
        return {name: size * torch.randn(weights.shape, generator=generator) for name, weights in base.items()}

    start, together = drawn(0.1), drawn(SHARED)
    start = {name: weights + 1 if name.endswith("norm.weight") else weights for name, weights in start.items()}
    states = {"base": start, "far": {name: start[name] + each for name, each in drawn(0.1).items()}}
    for number in (1, 2, 3):
        states[f"model{number}"] = {name: start[name] + together[name] + each for name, each in drawn(OWN).items()}
    config = (folder / "base/config.json").read_text()
    for name, state in states.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(config)
        (folder / name / "model.safetensors").unlink(missing_ok=True)
        save_file(state, folder / name / "model.safetensors", {"format": "pt"})
    model = LlamaForCausalLM.from_pretrained(folder / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_" in name:
                weights.normal_(0, 0.1, generator=generator)
    adapted.save_pretrained(str(folder / "adapter"))


def merged_here(brought: Path) -> dict[str, Tensor]:
    """Merge by the recipe that a configuration became."""
    merge_by(read_recipe(brought / RECIPE), brought / RECIPE, brought / "merged")
    return load_file(brought / "merged/model.safetensors")


def merge_there(files: Sequence[Path]) -> None:
    """Merge by mergekit, all in one process."""
    python = installed().with_name("python")
    command = [str(python.absolute()), "-c", THEIRS, *map(str, files)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def weights_in(folder: Path) -> dict[str, Tensor]:
    """Read all weights of a folder."""
    found: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def compare(name: str, ours: dict[str, Tensor], theirs: dict[str, Tensor], configuration: dict[str, Any]) -> None:
    """Print how far apart two models are; raise AssertionError where it is more than rounding."""
    assert ours.keys() == theirs.keys()
    assert all(ours[each].dtype == theirs[each].dtype for each in ours)
    base = load_file("base/model.safetensors")
    one, other, start = (torch.cat([each[p].double().flatten() for p in sorted(ours)]) for each in (ours, theirs, base))
    if "at random" in name:
        alike_at_random(name, one - start, other - start)
        return
    far, far_of_delta = (float((one - other).norm() / size) for size in (other.norm(), (other - start).norm()))
    print(f"| {name} | {far:.1e} | {far_of_delta:.1e} |", flush=True)
    assert far <= (ROUNDED if "dtype" in configuration else MOST), name


def alike_at_random(name: str, ours: Tensor, theirs: Tensor) -> None:
    """Compare merged deltas that were drawn: the share that is kept, and the sum of sizes, which is the whole's."""
    kept = [float((each != 0).double().mean()) for each in (ours, theirs)]
    sums = [float(each.abs().sum()) for each in (ours, theirs)]
    print(
        f"| {name}: kept {kept[0]:.4f} and {kept[1]:.4f} | sum of sizes {sums[0] / sums[1] - 1:.1e} apart | |",
        flush=True,
    )
    assert abs(kept[0] - kept[1]) <= STANDARD_ERRORS * (2 * 0.25 / len(ours)) ** 0.5, name
    assert abs(sums[0] / sums[1] - 1) <= 1e-5, name
