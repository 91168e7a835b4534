"""Learners without steps: they merge a network's blocks one after another, each from the output of those before it.

`merganser.learning.block_merging` goes through the blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.learning import Learner


class BlockSettings(BaseModel):
    """How many examples of each task to run, and on which device."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    examples: Annotated[int, Field(ge=1)] = 256
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True)
class BlockLearner(Learner):
    """How a learner merges one linear map, given the Gram matrices `gram` of its inputs.

    It learns the merged delta of each map that a forward pass applies; all other parameters are averaged.
    """

    settings: type[BlockSettings]  # type: ignore[assignment] # it has no steps, so none of their settings
    merge: Callable[[LayerDeltas, Any], Tensor] = lambda layer, _: layer.deltas.mean(dim=0)
