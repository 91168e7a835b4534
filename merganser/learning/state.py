"""The state of learning on disk: written whole, with a fingerprint of all that it follows from but the number of steps.

A killed run goes on from the last state written, and so does one with more steps, to the bytes of an undisturbed run.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.factors import fingerprint_of
from merganser.learning import Values
from merganser.learning.adam import Moments

FILE = "state.safetensors"
PARTS = ("values", "mean", "square", "best")


@dataclass(frozen=True)
class LearningState:
    """Where learning stands after a number of steps; `best` are the values of the lowest loss on the fixed examples."""

    step: int
    values: Values
    moments: Moments
    best: Values
    losses: tuple[float, ...]  # of each step's batches, before the step
    checks: dict[int, float]  # the losses on the fixed examples, by how many steps came before

    @property
    def best_step(self) -> int:
        """Return after how many steps the loss on the fixed examples was lowest; the first of equal ones."""
        return min(self.checks, key=lambda step: (self.checks[step], step))


def write_state(folder: Path, state: LearningState, fingerprint: str) -> None:
    """Write a state in place of the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = (state.values, state.moments.mean, state.moments.square, state.best)
    tensors = {f"{part}/{name}": x for part, group in zip(PARTS, groups, strict=True) for name, x in group.items()}
    about = {
        "fingerprint": fingerprint,
        "moves": dict(state.moments.moves),
        "step": state.step,
        "losses": state.losses,
        "checks": list(state.checks.items()),
    }
    save_tensors(folder / FILE, tensors, json.dumps(about))


def read_state(folder: Path, fingerprint: str, steps: int) -> LearningState | None:
    """Read the last state; None where there is none, of other inputs, or of more steps than are wanted."""
    if fingerprint_of(folder / FILE) != fingerprint:
        return None
    file = SafetensorsFile(folder / FILE)
    about = json.loads(file.metadata["merganser"])
    if about["step"] > steps:
        return None
    groups: dict[str, Values] = {part: {} for part in PARTS}
    for name in file.names:
        part, _, own = name.partition("/")
        groups[part][own] = file.read(name)
    values, mean, square, best = groups.values()
    checks = {int(step): float(loss) for step, loss in about["checks"]}
    return LearningState(
        about["step"], values, Moments(mean, square, about["moves"]), best, tuple(about["losses"]), checks
    )
