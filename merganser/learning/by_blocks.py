"""Learners without steps: a network's blocks are merged one after another, by what the merged ones before give them.

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
    """How many examples of each task are measured, and where the network runs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    examples: Annotated[int, Field(ge=1)] = 256
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True)
class BlockLearner(Learner):
    """How one linear map is merged by a learner's settings, given the Gram matrices of its inputs as `gram`.

    What is learned is the merged delta of each map that a forward pass applies; all other parameters are averaged.
    """

    settings: type[BlockSettings]  # type: ignore[assignment] # it has no steps, so none of their settings
    merge: Callable[[LayerDeltas, Any], Tensor] = lambda layer, _: layer.deltas.mean(dim=0)
