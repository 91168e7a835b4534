"""A small network, fine-tuned by PEFT: its base, adapters, and the same models merged by PEFT itself, on disk."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import Tensor, nn

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.inputs.deltas import DeltaFile, extract

LAYERS = ["conv1", "attn", "fc", "proj"]


class Small(nn.Module):
    """One block of a vision transformer, a head, and an embedding beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 2, 2, bias=False)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.ln = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 32)
        self.proj = nn.Linear(32, 16)
        self.head = nn.Linear(16, 5)
        self.emb = nn.Embedding(7, 16)

    def forward(self, images: Tensor) -> Tensor:
        """Score images (B, 3, 4, 4)."""
        x = self.conv1(images).flatten(2).mT + self.emb.weight[:4]
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return self.head((x + self.proj(self.fc(self.ln(x)).relu())).mean(1))


def write_base(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Write the base model, and return its parameters."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = {name: value.detach().clone() for name, value in Small().to(dtype).state_dict().items()}
    save_file(parameters, folder / "model.safetensors")
    return parameters


def adapted(base: Path, seed: int = 1, **settings: Any) -> PeftModel:
    """Load the base, and put a random adapter on it whose updates are about as large as the weights."""
    model = Small()
    given = open_checkpoint(base)
    model.load_state_dict({name: given.read(name) for name in given.names})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = get_peft_model(model, LoraConfig(**{"r": 2, "lora_alpha": 3, "target_modules": LAYERS} | settings))
    generator = torch.Generator().manual_seed(seed)
    for parameter in tuned.parameters():
        if parameter.requires_grad:
            parameter.data = (0.4 * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)
    return tuned


def write_adapter(folder: Path, base: Path, seed: int = 1, **settings: Any) -> dict[str, Tensor]:
    """Write an adapter, and beside it the model that PEFT merges it to; return that model's parameters."""
    tuned = adapted(base, seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned.save_pretrained(folder)
    parameters = {name: value.detach().clone() for name, value in tuned.merge_and_unload().state_dict().items()}
    merged = folder.with_name(f"{folder.name}-merged")
    merged.mkdir()
    save_file(parameters, merged / "model.safetensors")
    return parameters


def extracted(base: Path, adapter: Path, out: Path, rules: ParameterRules | None = None) -> DeltaFile:
    """Extract an adapter's deltas."""
    extract(open_checkpoint(base), open_model(adapter), rules or ParameterRules(), "one", out)
    return DeltaFile(out)


def rewritten(
    folder: Path, rename: Callable[[str], str], change: Callable[[Tensor], Tensor] = lambda value: value
) -> None:
    """Give an adapter's tensors other names, or other values."""
    path = folder / "adapter_model.safetensors"
    given: Checkpoint = open_checkpoint(path)
    tensors = {rename(name): change(given.read(name)) for name in given.names}
    path.unlink()
    save_file(tensors, path)
