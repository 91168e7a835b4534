"""Tiny checkpoints on disk: a base and fine-tuned models with every kind of parameter."""

from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.writing import save_tensors

SHAPES = {
    "blocks.0.attn.in_proj_weight": (24, 8),
    "blocks.0.attn.in_proj_bias": (24,),
    "blocks.0.ln_1.weight": (8,),
    "blocks.0.mlp.c_fc.weight": (16, 8),
    "blocks.0.row.weight": (1, 8),
    "conv1.weight": (8, 3, 2, 2),
    "logit_scale": (),
    "positional_embedding": (5, 8),
    "proj": (8, 6),
}


def random_state(seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Draw a state dict of the shapes above."""
    generator = torch.Generator().manual_seed(seed)
    return {name: (scale * torch.randn(shape, generator=generator)).to(dtype) for name, shape in SHAPES.items()}


def write_models(folder: Path, tasks: int = 3, dtype: torch.dtype = torch.float32) -> dict[str, Path]:
    """Write `base` and `task0`... as checkpoint folders; the base also holds an integer, which stays frozen."""
    base = random_state(0, dtype=dtype)
    models = {"base": base | {"steps": torch.tensor(3)}}
    for t in range(tasks):
        delta = random_state(t + 1, scale=0.05)
        models[f"task{t}"] = {name: (base[name].float() + delta[name]).to(dtype) for name in base}
    for name, state in models.items():
        (folder / name).mkdir(parents=True)
        save_tensors(folder / name / "model.safetensors", state)
    return {name: folder / name for name in models}
