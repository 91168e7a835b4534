"""What some methods add to a network at evaluation: bottlenecks after its features, experts that the input chooses."""

from pathlib import Path

from merganser.errors import InputError

BOTTLENECKS = "bottlenecks.safetensors"
ROUTER = "router.safetensors"
GATES = "gates.json"
BLOCK_ROUTERS = "block_routers.safetensors"


def check_one_model(merged: Path, task: str) -> None:
    """Refuse to give a task's own model of a merge whose parameters alone are none."""
    if (merged / BOTTLENECKS).is_file():
        reason = f"the features of {task} pass through a bottleneck, which is not a parameter of a model"
        raise InputError(f"{merged}: {reason}; take its model.safetensors and apply {BOTTLENECKS} before the head")
