"""A step of AdaMerging as public code does it: all task vectors in memory, and merged in one graph.

`python -m benchmarks.plain.learning BASE BATCH DATA=MODEL ...`: a folder of the base, examples a batch, and for each
task a folder of its data and its model.
"""

import sys
from pathlib import Path
from typing import Any

import open_clip
import torch
from datasets import load_from_disk
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call

START, CLASSES = 0.3, 3


def main(argv: list[str]) -> None:
    """Learn one step, and print the loss."""
    base, size, *pairs = argv
    torch.set_num_threads(1)
    model: Any = open_clip.create_model(f"local-dir:{base}", load_weights=False).eval()
    model.load_state_dict(load_file(Path(base) / "model.safetensors"))
    frozen = {name: value.detach() for name, value in model.state_dict().items() if name.startswith("visual.")}
    vectors = [_vector(Path(pair.split("=")[1]), frozen) for pair in pairs]
    coefficients = torch.full((len(frozen), len(pairs)), START, requires_grad=True)
    optimiser = torch.optim.Adam([coefficients], lr=1e-3)
    rows = zip(frozen.items(), coefficients, strict=True)
    merged = {name: value + sum(c * v[name] for c, v in zip(row, vectors, strict=True)) for (name, value), row in rows}
    loss = torch.zeros(())
    for pair in pairs:
        images = _images(Path(pair.split("=")[0]), int(size))
        features = functional_call(model, merged, kwargs={"image": images})[0]
        p = torch.softmax(100 * features[:, :CLASSES], dim=1)  # a head made of nothing
        loss = loss - (p * (p + 1e-8).log()).sum(1).mean()
    loss.backward()
    optimiser.step()
    print(float(loss.detach()))


def _vector(path: Path, base: dict[str, Tensor]) -> dict[str, Tensor]:
    tuned = load_file(path / "model.safetensors")
    return {name: tuned[name] - value for name, value in base.items()}


def _images(path: Path, size: int) -> Tensor:
    rows = load_from_disk(str(path))["test"].with_format("torch")[:size]["image"]
    return rows.permute(0, 3, 1, 2).float().div(255)


if __name__ == "__main__":
    main(sys.argv[1:])
